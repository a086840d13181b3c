// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * /dev/usb4ring, and files without a name that are the same to a client whose
 * objects others make.
 *
 * In C because of files.
 */
#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

#include "client.h"

static int ring_open(struct inode *inode, struct file *file)
{
	struct u4_client *client;

	client = u4_client_new(false);
	if (IS_ERR(client))
		return PTR_ERR(client);
	file->private_data = client;
	return nonseekable_open(inode, file);
}

static int ring_release(struct inode *inode, struct file *file)
{
	u4_client_put(file->private_data);
	return 0;
}

static long ring_ioctl(struct file *file, unsigned int cmd, unsigned long addr)
{
	return u4_client_call(file->private_data, cmd, addr, false);
}

static const struct file_operations ring_fops = {
	.owner = THIS_MODULE,
	.open = ring_open,
	.release = ring_release,
	.unlocked_ioctl = ring_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = u4_client_mmap,
};

static struct miscdevice ring_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "usb4ring",
	.fops = &ring_fops,
	.groups = u4_device_groups,
	/* packaging/udev says who else may. */
	.mode = 0660,
};

static long lent_ioctl(struct file *file, unsigned int cmd, unsigned long addr)
{
	return u4_client_call(file->private_data, cmd, addr, true);
}

static const struct file_operations lent_fops = {
	.owner = THIS_MODULE,
	.release = ring_release,
	.unlocked_ioctl = lent_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = u4_client_mmap,
};

/**
 * u4_client_file() - a file for a client whose objects others make
 * @client: the client, which the file holds
 *
 * Return: the file, or an error.
 */
struct file *u4_client_file(struct u4_client *client)
{
	struct file *file;

	u4_client_get(client);
	file = anon_inode_getfile("[usb4ring]", &lent_fops, client,
				  O_RDWR | O_CLOEXEC);
	if (IS_ERR(file))
		u4_client_put(client);
	return file;
}

/**
 * u4_chardev_device() - the device, for a client of it
 */
struct device *u4_chardev_device(void)
{
	return ring_device.this_device;
}

/**
 * u4_chardev_init() - let clients in
 *
 * Return: 0 or an error.
 */
int u4_chardev_init(void)
{
	return misc_register(&ring_device);
}

/**
 * u4_chardev_exit() - no more clients; there are none
 */
void u4_chardev_exit(void)
{
	misc_deregister(&ring_device);
	u4_regions_exit();
}
