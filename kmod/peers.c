// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * Which neighbours may connect.
 *
 * In C because the administrator's word comes by ioctl and a router's UUID from
 * the thunderbolt driver. A rule binds a host's node id to a router's UUID. The
 * state machine of a rail refuses whoever is not let in; nothing here proves that
 * the other end is who it says.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/uuid.h>

#include "client.h"
#include "rail.h"

/**
 * struct rules - who is let in
 * @policy: USB4_RING_POLICY_*
 * @count: rules
 * @rules: the rules
 */
struct rules {
	u32 policy;
	u32 count;
	struct usb4_ring_rule rules[] __counted_by(count);
};

/* %NULL: whoever comes. Both under the lock. */
static struct rules *u4_rules;
static DEFINE_MUTEX(u4_rules_lock);

static bool is_of(const struct usb4_ring_rule *rule,
		  const struct usb4_core_node *node)
{
	return rule->node_low == node->low && rule->node_high == node->high;
}

static bool names(const struct usb4_ring_rule *rule, const uuid_t *router)
{
	return !memchr_inv(rule->router, 0, sizeof(rule->router)) ||
	       !memcmp(rule->router, router->b, sizeof(rule->router));
}

static bool allowed_by(const struct rules *rules,
		       const struct usb4_core_node *node, const uuid_t *router)
{
	bool known = false;
	u32 i;

	for (i = 0; i < rules->count; i++) {
		if (!is_of(&rules->rules[i], node))
			continue;
		if (names(&rules->rules[i], router))
			return true;
		known = true;
	}
	return !known && rules->policy == USB4_RING_POLICY_OPEN;
}

/**
 * u4_peers_allow() - whether a host is let in
 * @node: its node id, as it says
 * @router: UUID of the router at the other end of the cable
 *
 * May sleep.
 */
bool u4_peers_allow(const struct usb4_core_node *node, const uuid_t *router)
{
	bool allowed;

	mutex_lock(&u4_rules_lock);
	allowed = !u4_rules || allowed_by(u4_rules, node, router);
	mutex_unlock(&u4_rules_lock);
	return allowed;
}

/* Elements may be longer than we know, with nothing in what we do not know. */
static struct rules *copy_rules(const struct usb4_ring_rules *arg)
{
	const u8 __user *from = u64_to_user_ptr(arg->rules);
	struct rules *rules;
	u32 i;
	int ret;

	rules = kzalloc(struct_size(rules, rules, arg->count), GFP_KERNEL);
	if (!rules)
		return ERR_PTR(-ENOMEM);
	rules->policy = arg->policy;
	rules->count = arg->count;
	for (i = 0; i < rules->count; i++, from += arg->stride) {
		ret = copy_struct_from_user(&rules->rules[i],
					    sizeof(rules->rules[i]), from,
					    arg->stride);
		if (ret) {
			kfree(rules);
			return ERR_PTR(ret);
		}
	}
	return rules;
}

static bool fits(const struct usb4_ring_rules *arg)
{
	return arg->stride >= sizeof(struct usb4_ring_rule) &&
	       arg->stride <= PAGE_SIZE;
}

int u4_set_rules(struct u4_client *client, void *data)
{
	const struct usb4_ring_rules *arg = data;
	struct rules *old;
	struct rules *new;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (arg->reserved || !fits(arg) || arg->count > USB4_RING_MAX_RULES ||
	    arg->policy > USB4_RING_POLICY_LISTED)
		return -EINVAL;
	if (!capable(CAP_NET_ADMIN))
		return -EPERM;
	new = copy_rules(arg);
	if (IS_ERR(new))
		return PTR_ERR(new);
	mutex_lock(&u4_rules_lock);
	old = u4_rules;
	u4_rules = new;
	mutex_unlock(&u4_rules_lock);
	kfree(old);
	u4_rails_judge();
	return 0;
}

/* A copy, as user memory is not to be waited for with the lock. */
static struct rules *get_rules(void)
{
	struct rules *copy;
	u32 count = 0;

	mutex_lock(&u4_rules_lock);
	if (u4_rules)
		count = u4_rules->count;
	copy = kzalloc(struct_size(copy, rules, count), GFP_KERNEL);
	if (copy) {
		copy->count = count;
		if (u4_rules) {
			copy->policy = u4_rules->policy;
			memcpy(copy->rules, u4_rules->rules,
			       flex_array_size(copy, rules, count));
		}
	}
	mutex_unlock(&u4_rules_lock);
	return copy;
}

int u4_get_rules(struct u4_client *client, void *data)
{
	struct usb4_ring_rules *arg = data;
	u32 room = arg->count;
	struct rules *rules;
	int ret;

	if (arg->flags)
		return -EOPNOTSUPP;
	if (arg->reserved || !fits(arg))
		return -EINVAL;
	rules = get_rules();
	if (!rules)
		return -ENOMEM;
	arg->policy = rules->policy;
	arg->count = rules->count;
	ret = u4_put_list(arg->rules, arg->stride, rules->rules,
			  sizeof(rules->rules[0]), min(room, rules->count));
	kfree(rules);
	return ret;
}

/**
 * u4_peers_exit() - nobody comes any more
 */
void u4_peers_exit(void)
{
	kfree(u4_rules);
	u4_rules = NULL;
}
