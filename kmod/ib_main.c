// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * RDMA verbs over USB4 cables: the ib_device.
 *
 * In C because ib_core is. What is made here is made of what /dev/usb4ring gives
 * its clients (verbs.h): uverbs makes queues and regions, and what is posted and
 * completed goes through mapped queues and the ring API's ENTER, without uverbs.
 *
 * The kernel itself has the queue pair for management datagrams, by which rdma_cm
 * connects those of processes (ib_gsi.c), and no other.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/string.h>
#include <rdma/ib_user_verbs.h>

#include "ib.h"

static const struct ib_device_ops u4_ib_ops = {
	.owner = THIS_MODULE,
	/* It has no number of its own; its provider knows it by its driver. */
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.uverbs_no_driver_id_binding = 1,
	.uverbs_abi_ver = USB4_IB_ABI_VERSION,

	.query_device = u4_ib_query_device,
	.get_dev_fw_str = u4_ib_fw_str,
	.query_port = u4_ib_query_port,
	.get_port_immutable = u4_ib_port_immutable,
	.get_link_layer = u4_ib_link_layer,
	.query_pkey = u4_ib_query_pkey,
	.alloc_hw_port_stats = u4_ib_alloc_stats,
	.get_hw_stats = u4_ib_get_stats,

	/* No mmap(): queues are mapped through the context's own descriptor. */
	.alloc_ucontext = u4_ib_alloc_ucontext,
	.dealloc_ucontext = u4_ib_dealloc_ucontext,
	.disassociate_ucontext = u4_ib_disassociate_ucontext,
	.alloc_pd = u4_ib_alloc_pd,
	.dealloc_pd = u4_ib_dealloc_pd,
	.create_ah = u4_ib_create_ah,
	.create_user_ah = u4_ib_create_ah,
	.query_ah = u4_ib_query_ah,
	.destroy_ah = u4_ib_destroy_ah,
	/* Since 7.1 that is for the kernel, and yet uverbs wants it to be there. */
	.create_cq = u4_ib_create_cq,
#ifdef U4_IB_CREATE_USER_CQ
	.create_user_cq = u4_ib_create_cq,
#endif
	.destroy_cq = u4_ib_destroy_cq,
	.poll_cq = u4_ib_poll_cq,
	.req_notify_cq = u4_ib_req_notify_cq,
	.create_qp = u4_ib_create_qp,
	.modify_qp = u4_ib_modify_qp,
	.query_qp = u4_ib_query_qp,
	.destroy_qp = u4_ib_destroy_qp,
	.post_send = u4_ib_post_send,
	.post_recv = u4_ib_post_recv,
	.get_dma_mr = u4_ib_get_dma_mr,
	.create_srq = u4_ib_create_srq,
	.modify_srq = u4_ib_modify_srq,
	.query_srq = u4_ib_query_srq,
	.destroy_srq = u4_ib_destroy_srq,
	.reg_user_mr = u4_ib_reg_user_mr,
	.reg_user_mr_dmabuf = u4_ib_reg_user_mr_dmabuf,
	.dereg_mr = u4_ib_dereg_mr,

	INIT_RDMA_OBJ_SIZE(ib_ah, u4_ib_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_cq, u4_ib_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_pd, u4_ib_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, u4_ib_qp, ibqp),
	INIT_RDMA_OBJ_SIZE(ib_srq, u4_ib_srq, ibsrq),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, u4_ib_ucontext, ibuc),
};

static int u4_ib_probe(struct platform_device *pdev)
{
	struct u4_ib *dev;
	int ret;

	dev = ib_alloc_device(u4_ib, ibdev);
	if (!dev)
		return -ENOMEM;
	dev->ndev = u4_ib_netdev_add(&pdev->dev);
	if (IS_ERR(dev->ndev)) {
		ret = PTR_ERR(dev->ndev);
		goto err_alloc;
	}
	dev->ibdev.node_type = RDMA_NODE_IB_CA;
	dev->ibdev.phys_port_cnt = U4_IB_PORT;
	dev->ibdev.num_comp_vectors = 1;
	dev->ibdev.node_guid = cpu_to_be64(u4_verbs_guid(&u4_node));
	dev->ibdev.dev.parent = &pdev->dev;
	dev->ibdev.uverbs_cmd_mask |=
		BIT_ULL(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ);
	snprintf(dev->ibdev.node_desc, sizeof(dev->ibdev.node_desc),
		 "usb4_rdma " U4_NODE_FMT, u4_node.high, u4_node.low);
	ib_set_device_ops(&dev->ibdev, &u4_ib_ops);
	ret = ib_device_set_netdev(&dev->ibdev, dev->ndev, U4_IB_PORT);
	if (ret)
		goto err_netdev;
	/* No DMA: the processor copies. */
	ret = ib_register_device(&dev->ibdev, "usb4_%d", NULL);
	if (ret)
		goto err_netdev;
	u4_ib_netdev_up(dev->ndev);
	u4_ib_port_watch(dev);
	platform_set_drvdata(pdev, dev);
	return 0;

err_netdev:
	/* Which would be waited for. */
	ib_device_set_netdev(&dev->ibdev, NULL, U4_IB_PORT);
	u4_ib_netdev_remove(dev->ndev);
err_alloc:
	ib_dealloc_device(&dev->ibdev);
	return ret;
}

static void u4_ib_remove(struct platform_device *pdev)
{
	struct u4_ib *dev = platform_get_drvdata(pdev);

	/* Before the device, of which its work speaks. */
	u4_ib_port_unwatch(dev);
	ib_unregister_device(&dev->ibdev);
	u4_ib_netdev_remove(dev->ndev);
	ib_dealloc_device(&dev->ibdev);
}

static struct platform_driver u4_ib_driver = {
	.probe = u4_ib_probe,
	.remove = u4_ib_remove,
	.driver.name = U4_VERBS_DEVICE,
};

module_platform_driver(u4_ib_driver);

MODULE_IMPORT_NS("USB4_RDMA");
MODULE_ALIAS("platform:" U4_VERBS_DEVICE);
MODULE_DESCRIPTION("RDMA verbs over USB4 and Thunderbolt cables");
MODULE_AUTHOR("The usb4-rdma authors");
MODULE_VERSION(U4_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
