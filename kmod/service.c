// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * How hosts find each other, and their control messages: docs/spec/usb4.md.
 *
 * In C because the thunderbolt driver's interface is. A host announces the
 * service "usb4rdma" in its XDomain properties; where the other host does too,
 * a service device appears and is a rail of ours. Control messages are XDomain
 * requests of our own protocol that nobody answers.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/rcupdate.h>
#include <linux/uuid.h>

#include "usb4_rdma.h"

/* docs/spec/usb4.md, sections 1 and 2 */
#define SERVICE_KEY		"usb4rdma"
#define SERVICE_PROTOCOL	1
#define SERVICE_VERSION		1
#define SERVICE_REVISION	1
#define PACKET_CONTROL		1

static const uuid_t service_uuid =
	UUID_INIT(0x406da168, 0xed88, 0x4260,
		  0x99, 0xf5, 0x43, 0x68, 0x8d, 0xd3, 0x93, 0xa4);

static const uuid_t protocol_uuid =
	UUID_INIT(0xfeba2201, 0x275d, 0x47af,
		  0xb0, 0xa0, 0x24, 0xb2, 0xa8, 0x0f, 0x88, 0xc9);

/**
 * struct packet - a control message as it crosses the cable
 * @route_hi: route to the receiver; bit 31 is set by the router it enters
 * @route_lo: as above
 * @length_sn: bits 5:0: double words after this one
 * @protocol: protocol_uuid
 * @type: PACKET_CONTROL
 * @initiator: UUID of the sender's router
 * @target: UUID of the receiver's router
 * @message: the control message (docs/spec/wire.md, section 4)
 *
 * An array of double words to the control channel, which turns each of them
 * around on the way out and on the way in.
 */
struct packet {
	u32 route_hi;
	u32 route_lo;
	u32 length_sn;
	uuid_t protocol;
	u32 type;
	uuid_t initiator;
	uuid_t target;
	u8 message[USB4_CORE_CONTROL];
};

static_assert(sizeof(struct packet) == 160);
/* A control packet's 256 bytes, less those of its checksum. */
static_assert(sizeof(struct packet) <= TB_FRAME_SIZE - 4);

/* Double words of struct tb_xdomain_header, which @length_sn leaves out. */
#define PACKET_LENGTH \
	((sizeof(struct packet) - offsetof(struct packet, protocol)) / 4)

/*
 * How long to wait for an answer, in milliseconds. Peers send none; the router
 * does, at once, if the cable is gone.
 */
#define ANSWER_MS	5

/**
 * struct outgoing - a packet on its way out
 * @packet: the packet
 * @answer: room for a router's notification
 */
struct outgoing {
	struct packet packet;
	u32 answer[3];
};

static struct tb_property_dir *service_dir;

/* Calls of receive() that are under way. */
static atomic_t receiving = ATOMIC_INIT(0);

/*
 * A packet of our protocol, from any cable of any controller, in the work item
 * of a control channel: no place to wait for anything. A route is the same on
 * every controller; the UUIDs of both routers tell which cable it is.
 */
static int receive(const void *buf, size_t size, void *data)
{
	const struct packet *packet = buf;
	u64 route;

	if (size < sizeof(*packet) || packet->type != PACKET_CONTROL)
		return 0;
	atomic_inc(&receiving);
	route = (u64)packet->route_hi << 32 | packet->route_lo;
	u4_rail_receive(route & ~BIT_ULL(63), &packet->target,
			&packet->initiator, packet->message);
	atomic_dec(&receiving);
	return 1;
}

static struct tb_protocol_handler protocol_handler = {
	.uuid = &protocol_uuid,
	.callback = receive,
};

/**
 * u4_service_packet_size() - bytes of memory that u4_service_send() needs
 */
size_t u4_service_packet_size(void)
{
	return sizeof(struct outgoing);
}

/**
 * u4_service_send() - send a control message
 * @xd: to whom
 * @buf: memory for the packet, which the control channel may write to for an
 *	instant after this has returned
 * @message: the message
 *
 * May sleep. As a request, though nobody answers: what does not wait for an
 * answer (tb_xdomain_response()) is freed while its work item is queued if the
 * router's notification that the cable is gone is taken for one.
 *
 * Return: 0 or an error, which is as good as a loss on the way.
 */
int u4_service_send(struct tb_xdomain *xd, void *buf, const u8 *message)
{
	struct outgoing *out = buf;
	struct packet *packet = &out->packet;
	int ret;

	if (xd->is_unplugged)
		return -ENODEV;
	packet->route_hi = upper_32_bits(xd->route);
	packet->route_lo = lower_32_bits(xd->route);
	packet->length_sn = PACKET_LENGTH;
	packet->protocol = protocol_uuid;
	packet->type = PACKET_CONTROL;
	packet->initiator = *xd->local_uuid;
	packet->target = *xd->remote_uuid;
	memcpy(packet->message, message, sizeof(packet->message));
	ret = tb_xdomain_request(xd, packet, sizeof(*packet),
				 TB_CFG_PKG_XDOMAIN_REQ, out->answer,
				 sizeof(out->answer), TB_CFG_PKG_XDOMAIN_RESP,
				 ANSWER_MS);
	return ret == -ETIMEDOUT ? 0 : ret;
}

/* Services that come, and controllers that go. */
static DEFINE_MUTEX(controllers_lock);

/*
 * Whether a service's controller has a driver that is not on its way out, in the
 * driver core's words: these change before controller_event() is called.
 */
static bool has_controller(struct tb_service *svc)
{
	struct tb_xdomain *xd = tb_service_parent(svc);
	enum dl_dev_state state = READ_ONCE(u4_controller(xd)->links.status);

	/* What a controller's driver has left behind counts as unplugged. */
	return !xd->is_unplugged && (state == DL_DEV_PROBING ||
				     state == DL_DEV_DRIVER_BOUND);
}

static int service_probe(struct tb_service *svc)
{
	struct u4_rail *rail;

	mutex_lock(&controllers_lock);
	rail = has_controller(svc) ? u4_rail_new(svc) : ERR_PTR(-ENODEV);
	mutex_unlock(&controllers_lock);
	if (IS_ERR(rail))
		return PTR_ERR(rail);
	tb_service_set_drvdata(svc, rail);
	u4_rail_start(rail);
	return 0;
}

/* Until 7.2 there was a second argument, which says what matched. */
static int __maybe_unused service_probe_id(struct tb_service *svc,
					   const struct tb_service_id *id)
{
	return service_probe(svc);
}

#define SERVICE_PROBE \
	__builtin_choose_expr(__same_type(&service_probe, \
			((struct tb_service_driver *)NULL)->probe), \
		service_probe, service_probe_id)

static void service_remove(struct tb_service *svc)
{
	struct u4_rail *rail = tb_service_get_drvdata(svc);

	u4_rail_stop(rail);
	u4_rail_free(rail);
}

static void service_shutdown(struct tb_service *svc)
{
	u4_rail_shutdown(tb_service_get_drvdata(svc));
}

static int service_suspend(struct device *dev)
{
	u4_rail_stop(dev_get_drvdata(dev));
	return 0;
}

static int service_resume(struct device *dev)
{
	u4_rail_start(dev_get_drvdata(dev));
	return 0;
}

static DEFINE_SIMPLE_DEV_PM_OPS(service_pm, service_suspend, service_resume);

static const struct tb_service_id service_ids[] = {
	{ TB_SERVICE(SERVICE_KEY, SERVICE_PROTOCOL) },
	{ },
};
MODULE_DEVICE_TABLE(tbsvc, service_ids);

static struct tb_service_driver service_driver = {
	.driver = {
		.owner = THIS_MODULE,
		.name = KBUILD_MODNAME,
		.pm = pm_sleep_ptr(&service_pm),
		.dev_groups = u4_rail_groups,
	},
	.probe = SERVICE_PROBE,
	.remove = service_remove,
	.shutdown = service_shutdown,
	.id_table = service_ids,
};

/*
 * A controller's driver is about to go, and its registers with it. That of 7.3
 * leaves the services of connected hosts where they are, with their drivers; so
 * these have to go before. A device link would see to it, but its end, which comes
 * late, keeps a service that with 6.16 must not be there longer than its host.
 */
static int controller_event(struct notifier_block *notifier,
			    unsigned long event, void *data)
{
	struct tb_service *svc;
	struct tb_xdomain *xd;

	if (event != BUS_NOTIFY_UNBIND_DRIVER)
		return NOTIFY_DONE;
	/* Who comes from now on knows; who did not is among the rails. */
	mutex_lock(&controllers_lock);
	mutex_unlock(&controllers_lock);
	while ((svc = u4_rails_first(data, &xd))) {
		device_release_driver(&svc->dev);
		put_device(&svc->dev);
		tb_xdomain_put(xd);
	}
	return NOTIFY_DONE;
}

static struct notifier_block controller_notifier = {
	.notifier_call = controller_event,
};

static int announce(void)
{
	int ret = -ENOMEM;

	service_dir = tb_property_create_dir(&service_uuid);
	if (!service_dir)
		return ret;
	if (tb_property_add_immediate(service_dir, "prtcid",
				      SERVICE_PROTOCOL) ||
	    tb_property_add_immediate(service_dir, "prtcvers",
				      SERVICE_VERSION) ||
	    tb_property_add_immediate(service_dir, "prtcrevs",
				      SERVICE_REVISION) ||
	    tb_property_add_immediate(service_dir, "prtcstns", 0))
		goto err_dir;
	ret = tb_register_property_dir(SERVICE_KEY, service_dir);
	if (ret)
		goto err_dir;
	return 0;

err_dir:
	tb_property_free_dir(service_dir);
	return ret;
}

/*
 * tb_unregister_protocol_handler() does not wait for calls of the handler. Its
 * callers are work items: once each of them has given its processor away of its
 * own accord, none is between looking the handler up and counting itself, or
 * between that and our last instruction.
 */
static void forget_protocol(void)
{
	tb_unregister_protocol_handler(&protocol_handler);
	synchronize_rcu_tasks();
	while (atomic_read(&receiving))
		schedule_timeout_uninterruptible(1);
	synchronize_rcu_tasks();
}

/**
 * u4_service_init() - announce the service and take rails
 *
 * Return: 0 or an error.
 */
int u4_service_init(void)
{
	int ret;

	ret = tb_register_protocol_handler(&protocol_handler);
	if (ret)
		return ret;
	ret = announce();
	if (ret)
		goto err_protocol;
	ret = bus_register_notifier(&pci_bus_type, &controller_notifier);
	if (ret)
		goto err_announce;
	ret = tb_register_service_driver(&service_driver);
	if (ret)
		goto err_notifier;
	return 0;

err_notifier:
	bus_unregister_notifier(&pci_bus_type, &controller_notifier);
err_announce:
	tb_unregister_property_dir(SERVICE_KEY, service_dir);
	tb_property_free_dir(service_dir);
err_protocol:
	forget_protocol();
	return ret;
}

/**
 * u4_service_exit() - take leave of all peers, and withdraw the service
 */
void u4_service_exit(void)
{
	tb_unregister_service_driver(&service_driver);
	bus_unregister_notifier(&pci_bus_type, &controller_notifier);
	tb_unregister_property_dir(SERVICE_KEY, service_dir);
	tb_property_free_dir(service_dir);
	forget_protocol();
}
