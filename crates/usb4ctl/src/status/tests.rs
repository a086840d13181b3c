//! A sysfs of files, from the folders to the lines.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{gather, text};

/// A folder that goes with the test.
struct Sys(PathBuf);

impl Drop for Sys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const NODE: &str = "000102030405060708090a0b0c0d0e0f";
const PEER: &str = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff";

impl Sys {
    fn new(name: &str) -> Self {
        let at = std::env::temp_dir().join(format!("usb4ctl-status-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&at);
        fs::create_dir_all(&at).unwrap();
        Self(at)
    }

    fn put(&self, folder: &str, files: &[(&str, &str)]) -> &Self {
        let at = self.0.join(folder);
        fs::create_dir_all(&at).unwrap();
        for (name, text) in files {
            let at = at.join(name);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            fs::write(at, format!("{text}\n")).unwrap();
        }
        self
    }

    fn link(&self, at: &str, to: impl AsRef<Path>) -> &Self {
        let at = self.0.join(at);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        symlink(to, at).unwrap();
        self
    }

    /// A controller with an IOMMU, and a host at the end of its cable.
    fn cabled(&self) -> &Self {
        let pci = "devices/pci0000:00/0000:c6:00.5";
        self.put(pci, &[("vendor", "0x1022"), ("device", "0x158d")]);
        self.put(&format!("{pci}/domain0"), &[("iommu_dma_protection", "1")]);
        self.put("kernel/iommu_groups/7", &[("type", "DMA-FQ")]);
        self.link(
            &format!("{pci}/iommu_group"),
            self.0.join("kernel/iommu_groups/7"),
        );
        self.link("bus/pci/devices/0000:c6:00.5", self.0.join(pci));
        let bus = "bus/thunderbolt/devices";
        self.link(&format!("{bus}/domain0"), self.0.join(format!("{pci}/domain0")));
        self.put(&format!("{bus}/0-0"), &[("generation", "4"), ("unique_id", "x")]);
        self.put(&format!("{bus}/0-0:1.1"), &[("device", "0x1")]);
        self.put(
            &format!("{bus}/0-1"),
            &[
                ("maxhopid", "11"),
                ("device_name", "strix-b"),
                ("rx_speed", "20.0 Gb/s"),
                ("tx_speed", "20.0 Gb/s"),
                ("rx_lanes", "2"),
                ("tx_lanes", "2"),
            ],
        )
    }

    fn module(&self) -> &Self {
        let files = [("version", "0.1.0"), ("abi_version", "1"), ("node", NODE)];
        self.put("class/misc/usb4ring", &files)
    }

    fn service(&self, name: &str, key: &str) -> &Self {
        self.put(&format!("bus/thunderbolt/devices/{name}"), &[("key", key)])
    }

    fn rail(&self, name: &str, files: &[(&str, &str)]) -> &Self {
        let folder = format!("bus/thunderbolt/devices/{name}/usb4_rdma");
        self.service(name, "usb4rdma").put(&folder, files)
    }

    fn lines(&self) -> String {
        text::lines(&gather::facts(&self.0)).join("\n")
    }
}

#[test]
fn a_host_without_the_module_is_told_to_load_it_and_what_shares_the_cables() {
    let sys = Sys::new("bare");
    sys.cabled()
        .service("0-1.0", "network")
        .service("0-1.1", "usb4rdma");
    sys.put(
        "bus/thunderbolt/devices/0-1.0/net/thunderbolt0",
        &[("mtu", "1500")],
    );
    sys.link(
        "bus/thunderbolt/devices/0-1.0/driver",
        "../drivers/thunderbolt-net",
    );
    assert_eq!(
        sys.lines(),
        "\
device     none: the module usb4_rdma is not loaded
link       none: modprobe usb4_rdma
0-1.1      no driver: the module usb4_rdma is not loaded, or refuses it
domain0    controller 0000:c6:00.5 [1022:158d], IOMMU group 7 (DMA-FQ), DMA protection by the firmware
0-1.0      shares the cable: network, driver thunderbolt-net, thunderbolt0"
    );
}

#[test]
fn a_link_is_shown_with_its_rail_and_what_went_wrong() {
    let sys = Sys::new("up");
    sys.cabled().module();
    sys.put(
        "class/usb4_rdma/link0",
        &[
            ("peer", PEER),
            ("state", "up"),
            ("rails", "1"),
            ("age_ms", "200400"),
            ("statistics/tx_frames", "1234"),
            ("statistics/tx_bytes", "5054464"),
            ("statistics/tx_lost", "2"),
            ("statistics/tx_resent", "2"),
            ("statistics/rx_frames", "77"),
            ("statistics/rx_bytes", "999"),
            ("statistics/rx_corrupt", "3"),
            ("statistics/rx_no_room", "1"),
            ("statistics/completed", "20"),
            ("statistics/rnr_sent", "5"),
        ],
    );
    sys.rail(
        "0-1.1",
        &[
            ("state", "up"),
            ("reason", "none"),
            ("retry_ms", "0"),
            ("peer", PEER),
            ("link", "link0"),
            ("controller", "0000:c6:00.5"),
            ("tx_ring", "1"),
            ("rx_ring", "1"),
            ("tx_hop", "8"),
            ("rx_hop", "9"),
            ("rate_mbps", "18345"),
            ("rtt_ns", "12340"),
            ("tx_frames", "1240"),
            ("tx_lost", "2"),
            ("rx_frames", "80"),
            ("rx_crc_errors", "4"),
            ("interrupts", "31"),
            ("interrupts_lost", "1"),
            ("tx_kicks", "2"),
            ("stalls", "0"),
        ],
    );
    assert_eq!(
        sys.lines(),
        format!(
            "\
device     /dev/usb4ring (usb4_rdma 0.1.0, ABI 1)
node       {NODE}
link0      {PEER} up for 3 min 20 s, 1 rail
           sent 1234 frames, 5.0 MB, 2 lost, 2 sent again, 0 probes
           received 77 frames, 999 B, 4 dropped (3 corrupt, 1 no room)
           operations 20 completed, 0 failed; 0 of the peer's executed
           5 rnr sent
0-1.1      rail, up in link0
           2 x 20.0 Gb/s to strix-b (0-1), delivers 18.3 Gb/s, round trip 12.3 us
           HopID 8 out 9 in, ring 1 out 1 in, of 0000:c6:00.5
           sent 1240, 2 lost; received 80, 4 damaged, 0 too long; 31 interrupts, 1 that did not come, 2 kicks of the transmit ring
domain0    controller 0000:c6:00.5 [1022:158d], IOMMU group 7 (DMA-FQ), DMA protection by the firmware"
        )
    );
    let facts = gather::facts(&sys.0);
    assert_eq!(facts.rails[0].reason, None);
    assert!(!facts.rails[0].counters.contains_key("tx_hop"));
    let json = serde_json::to_value(&facts).unwrap();
    assert_eq!(json["links"][0]["counters"]["rx_corrupt"], 3);
    assert_eq!(json["hosts"][0]["tx_lanes"], 2);
}

#[test]
fn a_rail_that_waits_says_for_what_and_how_long() {
    let sys = Sys::new("waits");
    sys.cabled().module();
    let reason = "all rings of the controller are taken or kept for thunderbolt_net";
    sys.rail(
        "0-1.1",
        &[
            ("state", "no-ring"),
            ("reason", reason),
            ("retry_ms", "1250"),
            ("link", "none"),
        ],
    );
    let lines = sys.lines();
    assert!(
        lines.contains("link       none: see what the rails wait for"),
        "{lines}"
    );
    assert!(
        lines.contains(&format!(
            "0-1.1      rail, no-ring: {reason}; tried again in 1.2 s"
        )),
        "{lines}"
    );
}

#[test]
fn a_host_without_this_service_and_one_without_any_cable() {
    let sys = Sys::new("others");
    sys.cabled().module();
    let lines = sys.lines();
    assert!(
        lines.contains("link       none: no host has usb4_rdma loaded"),
        "{lines}"
    );
    assert!(
        lines.contains("0-1        strix-b (0-1) does not offer this service"),
        "{lines}"
    );
    let sys = Sys::new("empty");
    let lines = sys.module().lines();
    assert!(
        lines.contains("link       none: no USB4 controller here"),
        "{lines}"
    );
    let lines = sys.put("bus/thunderbolt/devices/domain0", &[]).lines();
    assert!(
        lines.contains("link       none: no host at the end of any cable"),
        "{lines}"
    );
}
