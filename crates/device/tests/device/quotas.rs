//! Objects that are not to be had.

use usb4_device::{Access, DeviceError, EndpointConfig, EndpointKind, Object, Quota, RegionConfig};
use usb4_engine::Slab;
use usb4_ring_abi::{Cqe, Rqe, Sqe};

use crate::home::Memory;
use crate::world::{Shape, World, cq_config, words};

#[test]
fn clients_of_one_user_share_what_the_user_may_have() {
    let world = World::new();
    let somebody = world.user(0, EndpointKind::Datagram);
    let device = world.device(&somebody);
    let shared = usb4_device::User {
        id: 7,
        quota: Quota {
            regions: 3,
            region_bytes: 100,
            ..Quota::UNLIMITED
        },
    };
    let add = |user| device.add_client_of(user, Quota::UNLIMITED, None).unwrap();
    let (one, two) = (add(Some(shared)), add(Some(shared)));
    let other = add(Some(usb4_device::User { id: 8, ..shared }));
    let exempt = add(None);
    let region = |len| RegionConfig {
        addr: 0,
        len,
        access: Access::LOCAL,
        peer: None,
        mem: Memory::zeroed(0),
    };
    let over = |object| Some(DeviceError::Quota(object));
    let keys = device.register(one, region(60)).unwrap();
    assert_eq!(
        device.register(two, region(41)).err(),
        over(Object::RegionByte),
        "the other client has 60 of 100"
    );
    device.register(two, region(10)).unwrap();
    device.register(two, region(10)).unwrap();
    assert_eq!(device.register(one, region(1)).err(), over(Object::Region));
    device.register(other, region(100)).unwrap();
    device.register(exempt, region(1 << 40)).unwrap();
    // A refusal has counted nothing, and what goes, or is given back, can be had again.
    assert_eq!(device.deregister(one, keys.local), Ok(true));
    device.register(one, region(80)).unwrap();
    device.remove_client(two, 0).unwrap();
    device.register(one, region(20)).unwrap();
}

#[test]
fn every_quota_is_enforced_and_what_is_given_back_can_be_had_again() {
    let quota = Quota {
        endpoints: 1,
        cqs: 1,
        cq_entries: 64,
        regions: 1,
        region_bytes: 100,
        handles: 1,
    };
    let world = World::new();
    let user = world.user_of(
        0,
        EndpointKind::Datagram,
        Shape {
            quota,
            ..Shape::default()
        },
    );
    let peer = world.user(1, EndpointKind::Datagram);
    let device = world.device(&user);
    let (client, wakes) = (user.client, user.wakes.clone());
    let over = |object| Some(DeviceError::Quota(object));

    let region = |len| RegionConfig {
        addr: 0,
        len,
        access: Access::LOCAL,
        peer: None,
        mem: Memory::zeroed(0),
    };
    assert_eq!(
        device.register(client, region(101)).err(),
        over(Object::RegionByte)
    );
    let keys = device.register(client, region(100)).unwrap();
    assert_eq!(device.register(client, region(0)).err(), over(Object::Region));
    assert_eq!(device.deregister(client, keys.local), Ok(true));
    device.register(client, region(100)).unwrap();

    assert_eq!(
        device
            .create_cq(client, cq_config(1, &words::<Cqe>(1), &wakes))
            .err(),
        over(Object::Cq)
    );
    let endpoint = || EndpointConfig {
        kind: EndpointKind::Datagram,
        send_cq: user.cq_id,
        recv_cq: user.cq_id,
        sq_depth: 2,
        sq: words::<Sqe>(2),
        rq_depth: 2,
        rq: words::<Rqe>(2),
        handles: Slab::boxed(1),
    };
    assert_eq!(
        device.create_endpoint(client, endpoint()).err(),
        over(Object::Endpoint)
    );
    let ah = device.create_ah(client, user.ep, &peer.addr).unwrap();
    assert_eq!(
        device.create_ah(client, user.ep, &peer.addr).err(),
        over(Object::Handle)
    );
    device.destroy_ah(client, user.ep, ah, 0).unwrap();
    device.create_ah(client, user.ep, &peer.addr).unwrap();

    assert_eq!(device.destroy_cq(client, user.cq_id), Err(DeviceError::Busy));
    device.destroy_endpoint(client, user.ep, 0).unwrap();
    let (ep, _) = device.create_endpoint(client, endpoint()).unwrap();
    assert_ne!(ep, user.ep, "the old name does not reach the new endpoint");
    device.create_ah(client, ep, &peer.addr).unwrap();
    device.destroy_endpoint(client, ep, 0).unwrap();
    device.destroy_cq(client, user.cq_id).unwrap();
    let big = cq_config(128, &words::<Cqe>(128), &wakes);
    assert_eq!(device.create_cq(client, big).err(), over(Object::CqEntry));
    device
        .create_cq(client, cq_config(64, &words::<Cqe>(64), &wakes))
        .unwrap();
}

#[test]
fn objects_of_another_client_are_not_there() {
    let world = World::new();
    let (mine, yours) = (
        world.user(0, EndpointKind::Datagram),
        world.user(0, EndpointKind::Datagram),
    );
    let device = world.device(&mine);
    let keys = world.register(&yours, &Memory::zeroed(8), Access::LOCAL);
    assert_eq!(
        device.destroy_endpoint(mine.client, yours.ep, 0),
        Err(DeviceError::NoEndpoint)
    );
    assert_eq!(
        device.destroy_cq(mine.client, yours.cq_id),
        Err(DeviceError::NoCq)
    );
    assert_eq!(
        device.deregister(mine.client, keys.local),
        Err(DeviceError::NoRegion)
    );
    assert_eq!(
        device.reclaim(mine.client, keys.local, true),
        Err(DeviceError::NoRegion)
    );
    let config = EndpointConfig {
        kind: EndpointKind::Datagram,
        send_cq: mine.cq_id,
        recv_cq: yours.cq_id,
        sq_depth: 2,
        sq: words::<Sqe>(2),
        rq_depth: 2,
        rq: words::<Rqe>(2),
        handles: Slab::boxed(1),
    };
    assert_eq!(
        device.create_endpoint(mine.client, config).err(),
        Some(DeviceError::NoCq)
    );
    device.destroy_endpoint(mine.client, mine.ep, 0).unwrap();
    device.destroy_cq(mine.client, mine.cq_id).unwrap();
}

#[test]
fn ranges_that_wrap_are_not_registered() {
    let world = World::new();
    let user = world.user(0, EndpointKind::Datagram);
    let region = |addr, len| {
        let mem = Memory::zeroed(0);
        let config = RegionConfig {
            addr,
            len,
            access: Access::LOCAL,
            peer: None,
            mem,
        };
        world.device(&user).register(user.client, config).map(drop)
    };
    assert_eq!(region(u64::MAX, 2), Err(DeviceError::Range));
    assert_eq!(region(2, u64::MAX), Err(DeviceError::Range));
    assert_eq!(region(u64::MAX, 1), Ok(()));
    assert_eq!(region(0, 0), Ok(()));
}
