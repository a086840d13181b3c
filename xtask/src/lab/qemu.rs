//! QEMU's command line for one guest.

use super::ticks;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A guest to be started.
pub(crate) struct Machine {
    pub(crate) guest: usize,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    /// Kernel parameters besides the lab's own.
    pub(crate) parameters: String,
    /// Sockets of the host routers in it.
    pub(crate) routers: Vec<PathBuf>,
    /// Where its console goes: pipes with this name and `.in` or `.out` after it.
    pub(crate) console: PathBuf,
    /// Where its agent's port goes: a socket that somebody listens on.
    pub(crate) agent: PathBuf,
    /// The out-of-band network: the guest's own datagram socket, and the one it sends to.
    pub(crate) network: (PathBuf, PathBuf),
    /// Put an IOMMU between devices and memory.
    pub(crate) iommu: bool,
    /// Folders of this machine that it can mount by the names [`share_name`] gives.
    pub(crate) shares: Vec<Share>,
}

/// A folder of this machine that guests have at the same path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) folder: PathBuf,
    /// Guests may write to it, and see at once what others have written there.
    pub(crate) writable: bool,
}

/// The name by which the kernel of a guest knows the share at this place in the list.
pub(crate) fn share_name(place: usize) -> String {
    format!("share{place}")
}

impl Machine {
    /// Adds the arguments to `command`, QEMU from the tree at `tree`.
    pub(crate) fn arguments(&self, tree: &Path, command: &mut Command) {
        let share = tree.join("usr/share");
        command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
        for folder in ["qemu", "seabios"] {
            command.arg("-L").arg(share.join(folder));
        }
        // Other processes emulate the devices and need a file descriptor of the guest's memory.
        let memory = self.memory_mib;
        command.args(["-machine", "q35,memory-backend=m,i8042=off"]);
        command.args(["-m", &memory.to_string(), "-object"]);
        command.arg(format!("memory-backend-memfd,id=m,size={memory}M,share=on"));
        command.args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            &self.cpus.to_string(),
        ]);
        if self.iommu {
            // Of interest is what it does to DMA. With interrupts remapped the kernel panics where a busy host makes its
            // timer late during boot (check_timer in arch/x86/kernel/apic/io_apic.c).
            command.args(["-device", "intel-iommu,intremap=off,caching-mode=on"]);
        }
        command.args([
            "-chardev",
            &format!("pipe,id=console,path={}", self.console.display()),
            "-serial",
            "chardev:console",
        ]);
        // Behind a port of its own a virtio device can say that it keeps its state in D3hot. Otherwise the driver sets it
        // up anew after system sleep, and what is on its way is lost.
        for port in ["agent", "net"] {
            command.args([
                "-device",
                &format!("pcie-root-port,id=port-{port},chassis={},slot={0}", port.len()),
            ]);
        }
        let keeps = "x-pcie-pm-no-soft-reset=on";
        command.args(["-device", &format!("virtio-serial-pci,bus=port-agent,{keeps}")]);
        command.args([
            "-chardev",
            &format!("socket,id=agent,path={}", self.agent.display()),
            "-device",
        ]);
        command.arg(format!(
            "virtserialport,chardev=agent,name={}",
            usb4_lab_agent::PORT
        ));
        let (own, other) = &self.network;
        command.arg("-netdev").arg(format!(
            "dgram,id=net,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            own.display(),
            other.display()
        ));
        command.args([
            "-device",
            &format!(
                "virtio-net-pci,netdev=net,bus=port-net,{keeps},romfile=,mac={}",
                mac(self.guest)
            ),
        ]);
        for (place, share) in self.shares.iter().enumerate() {
            let name = share_name(place);
            // QEMU takes two commas for one.
            let path = share.folder.display().to_string().replace(',', ",,");
            let only = if share.writable { "" } else { ",readonly=on" };
            command.args([
                "-fsdev",
                &format!("local,id={name},path={path},security_model=none{only}"),
                "-device",
                &format!("virtio-9p-pci,fsdev={name},mount_tag={name}"),
            ]);
        }
        for path in &self.routers {
            // `socket` is a structure, which only the JSON form can express.
            let path = path.display();
            command.arg("-device").arg(format!(
                r#"{{"driver":"vfio-user-pci","socket":{{"type":"unix","path":"{path}"}}}}"#
            ));
        }
        command
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.initrd);
        command.args(["-append", &self.parameters()]);
    }

    fn parameters(&self) -> String {
        // A guest that panics ends; its console speaks on while it sleeps. The rest saves time under emulation and
        // changes nothing that drivers see: no mitigations, no self-tests of ciphers (a second of each boot), no doubt in
        // clock and timer, which a busy machine would sow.
        let quick = "mitigations=off cryptomgr.notests=1 tsc=reliable no_timer_check";
        let console = "console=ttyS0 no_console_suspend loglevel=8";
        // A guest's clock goes on while a busy machine has no processor for it. So its watchdogs bark after two minutes
        // and not after 20 s (kernel/watchdog.c: twice the threshold, which is 60 s at most; kernel/rcu/tree_stall.h).
        let watchdogs = "watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=120";
        let clock = ticks::per_millisecond().map_or(String::new(), |ticks| format!(" tsc_early_khz={ticks}"));
        let own = format!(
            "{console} panic=-1 {quick}{clock} {watchdogs} lab.guest={}",
            self.guest
        );
        let iommu = if self.iommu {
            " intel_iommu=on iommu.strict=1"
        } else {
            ""
        };
        format!("{own}{iommu} {}", self.parameters).trim_end().to_string()
    }
}

/// A locally administered address, the last digit the guest's number.
fn mac(guest: usize) -> String {
    format!("52:54:00:4c:42:{guest:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            guest: 1,
            memory_mib: 512,
            cpus: 1,
            kernel: "/k".into(),
            initrd: "/i".into(),
            parameters: String::new(),
            routers: vec!["/s/nhi1.sock".into()],
            console: "/s/c".into(),
            agent: "/s/a".into(),
            network: ("/s/n1".into(), "/s/n".into()),
            iommu: false,
            shares: vec![],
        }
    }

    fn line(machine: &Machine) -> String {
        let mut command = Command::new("qemu");
        machine.arguments(Path::new("/t"), &mut command);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn memory_is_shared_and_routers_are_given_in_json() {
        let line = line(&machine());
        assert!(
            line.contains("memory-backend-memfd,id=m,size=512M,share=on"),
            "{line}"
        );
        let json = r#"{"driver":"vfio-user-pci","socket":{"type":"unix","path":"/s/nhi1.sock"}}"#;
        assert!(line.contains(json), "{line}");
        assert!(
            line.contains("-chardev pipe,id=console,path=/s/c -serial chardev:console"),
            "{line}"
        );
        assert!(line.contains("lab.guest=1") && !line.contains("iommu"), "{line}");
    }

    #[test]
    fn a_folder_is_shared_by_its_path_whatever_that_is() {
        let mut machine = machine();
        machine.shares = ["/a", "/b,c"]
            .map(|folder| Share {
                folder: folder.into(),
                writable: folder == "/a",
            })
            .to_vec();
        let line = line(&machine);
        for part in [
            "-fsdev local,id=share0,path=/a,security_model=none -device virtio-9p-pci,fsdev=share0,mount_tag=share0 ",
            "-fsdev local,id=share1,path=/b,,c,security_model=none,readonly=on -device",
        ] {
            assert!(line.contains(part), "{line}");
        }
    }

    #[test]
    fn an_iommu_comes_with_what_the_kernel_needs_to_use_it() {
        let mut machine = machine();
        machine.iommu = true;
        machine.parameters = "swiotlb=force".into();
        let line = line(&machine);
        assert!(line.contains("-device intel-iommu,"), "{line}");
        assert!(
            line.ends_with("lab.guest=1 intel_iommu=on iommu.strict=1 swiotlb=force"),
            "{line}"
        );
    }
}
