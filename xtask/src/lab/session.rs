//! A running lab: guests, the emulator between them, and the way to run commands in them.

use super::agent::{Agent, Output, Running, Said};
use super::binary;
use super::child::Child;
use super::console::{Console, Pipes};
use super::cpio::Archive;
use super::debug_kernel::Kind;
use super::emulator::{self, Emulator};
use super::folder::Folder;
use super::image;
use super::kernel_log;
use super::module;
use super::preflight;
use super::qemu::{Machine, Share};
use super::shared;
use super::switch::{self, Switch};
use super::tree::{Kernel, Tree};
use crate::dkms;
use crate::freestanding::Release;
use crate::interrupt;
use crate::ui::Task;
use crate::workspace::{root, work};
use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use usb4_nhi_model::Topology;

/// How long a guest may take to boot. A quiet machine needs a few seconds.
const BOOT: Duration = Duration::from_secs(180);
/// How long a command may take unless it is said otherwise.
const COMMAND: Duration = Duration::from_secs(60);

/// Where guests have the module of the next release, if they are to have it.
pub(crate) const NEXT_MODULE: &str = "/usr/lib/usb4_rdma-next.ko";

/// What is to be started.
#[derive(Clone)]
pub(crate) struct Plan {
    /// Name of the folder for logs.
    pub(crate) name: String,
    /// The fabric, in [`Topology`]'s text form.
    pub(crate) fabric: String,
    pub(crate) topology: Topology,
    /// Of what the emulator does at random.
    pub(crate) seed: u64,
    /// See [`Kernel::get`].
    pub(crate) kernel: String,
    pub(crate) memory_mib: u32,
    pub(crate) cpus: u32,
    /// Further kernel parameters.
    pub(crate) parameters: String,
    pub(crate) iommu: bool,
    /// Build kmod/ and let the guests find it.
    pub(crate) module: bool,
    /// Have DKMS build it.
    pub(crate) dkms: bool,
    /// Build the one of the next release as well, to [`NEXT_MODULE`].
    pub(crate) next_module: bool,
    /// Files for the guests: where, and which.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// Guests have this machine's folders for jobs, see [`shared`].
    pub(crate) shared: bool,
    /// After this QEMU and the emulator are ended whatever happens.
    pub(crate) limit: Duration,
    /// How many times as long as otherwise guests may take for anything. Follows from the kernel.
    pub(crate) patience: u32,
}

impl Plan {
    pub(crate) fn new(name: &str, fabric: &str) -> Result<Plan> {
        let topology = fabric.parse();
        Ok(Plan {
            name: name.to_string(),
            fabric: fabric.to_string(),
            topology: topology.with_context(|| format!("topology {fabric}"))?,
            seed: 1,
            kernel: "newest".to_string(),
            memory_mib: 512,
            cpus: 1,
            parameters: String::new(),
            iommu: false,
            module: false,
            dkms: false,
            next_module: false,
            files: vec![],
            shared: false,
            limit: Duration::from_secs(1800),
            patience: 1,
        })
    }

    /// The same with what a kernel that looks for mistakes takes more of.
    fn fitted(mut self) -> Plan {
        if let Some(kind) = Kind::named(&self.kernel) {
            self.memory_mib = kind.memory_mib(self.memory_mib);
            self.cpus = kind.cpus(self.cpus);
            self.parameters = format!("{} {}", self.parameters, kind.parameters());
            self.patience = kind.patience();
            self.limit *= self.patience;
        }
        self
    }
}

/// Guests that have booted. Dropping it ends everything.
pub(crate) struct Lab {
    // In this order: guests go before what they are connected to.
    guests: Vec<Guest>,
    emulator: Emulator,
    switch: Switch,
    folder: Folder,
    tree: Tree,
    plan: Plan,
    shares: Vec<Share>,
    pub(crate) kernel: Kernel,
    /// Where consoles and the programs' output are kept.
    pub(crate) logs: PathBuf,
}

impl Lab {
    /// Boots the guests; returns when every one takes commands.
    pub(crate) fn start(plan: &Plan) -> Result<Lab> {
        let plan = &plan.clone().fitted();
        preflight::check(plan.topology.hosts, plan.memory_mib)?;
        let tree = Tree::get()?;
        let kernel = Kernel::get(&plan.kernel)?;
        let base = image::base(&tree, &kernel)?;
        let agent = binary::build("usb4-lab-agent", "usb4-lab-agent")?;
        let program = binary::build("usb4-nhi-emu", "usb4-nhi-emu")?;
        let mut files = plan.files.clone();
        if plan.module {
            let built = if plan.dkms {
                module::build_by_dkms(&tree, &kernel)?
            } else {
                module::build(&tree, &kernel, &root().join("kmod"), Release::This, &[])?
            };
            for path in built.modules {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                // Where depmod looks first.
                files.push((
                    format!("/usr/lib/modules/{}/updates/{name}", kernel.release),
                    path,
                ));
            }
        }
        if plan.next_module {
            let built = module::build(&tree, &kernel, &root().join("kmod"), Release::Next, &[])?;
            let module = format!("{}.ko", dkms::NAME);
            let modules = built.modules.into_iter().filter(|path| path.ends_with(&module));
            files.extend(modules.map(|path| (NEXT_MODULE.into(), path)));
        }
        let logs = work().join("lab/logs").join(&plan.name);
        fs::create_dir_all(&logs).with_context(|| format!("create {}", logs.display()))?;
        let guests = plan.topology.hosts;
        let many = if guests == 1 { "guest" } else { "guests" };
        let mut task = Task::start(format!("boot {guests} {many} with {}", kernel.release), None);
        let shares = if plan.shared { shared::folders()? } else { vec![] };
        let folder = Folder::create()?;
        let initrd = folder.join("initrd");
        write_initrd(&initrd, &base, &agent, &files)?;
        let log = logs.join("emulator.log");
        let emulator = Emulator::start(
            &folder,
            &emulator::Options {
                program: &program,
                text: &plan.fabric,
                topology: &plan.topology,
                seed: plan.seed,
                limit: plan.limit,
                log: &log,
            },
        )?;
        let switch = Switch::start(folder.path(), guests)?;
        let mut lab = Lab {
            guests: vec![],
            emulator,
            switch,
            folder,
            tree,
            plan: plan.clone(),
            shares,
            kernel,
            logs,
        };
        let booting: Vec<Booting> = (0..guests)
            .map(|guest| Booting::start(guest, &lab))
            .collect::<Result<_>>()?;
        let deadline = Instant::now() + BOOT * plan.patience;
        for guest in booting {
            let log = lab.logs.join(format!("guest{}.log", guest.number));
            lab.guests.push(guest.booted(deadline, &log, &mut task)?);
        }
        if plan.module {
            let guests = &lab.guests;
            guests.iter().try_for_each(|guest| guest.sh("depmod").map(drop))?;
        }
        let (guests, shares) = (&lab.guests, &lab.shares);
        guests.iter().try_for_each(|guest| shared::mount(guest, shares))?;
        task.done("they take commands");
        Ok(lab)
    }

    /// Ends a guest as if its power had failed, and boots it anew; what it was told to load is to be loaded again. What it
    /// has complained about is lost.
    pub(crate) fn reboot(&mut self, number: usize) -> Result<()> {
        self.guest(number)?;
        // Its sockets and pipes are named after it, and in the way of new ones.
        let gone = self.guests.remove(number);
        let reboots = gone.reboots + 1;
        drop(gone);
        for name in ["console", "agent", "net"] {
            for end in ["", ".in", ".out"] {
                let _ = fs::remove_file(self.folder.join(&format!("{name}{number}{end}")));
            }
        }
        let mut task = Task::start(format!("boot guest {number} again"), None);
        let booting = Booting::start(number, self)?;
        let log = self.logs.join(format!("guest{number}-again{reboots}.log"));
        let deadline = Instant::now() + BOOT * self.plan.patience;
        let mut guest = booting.booted(deadline, &log, &mut task)?;
        guest.reboots = reboots;
        if self.plan.module {
            guest.sh("depmod")?;
        }
        shared::mount(&guest, &self.shares)?;
        task.done("it takes commands");
        self.guests.insert(number, guest);
        Ok(())
    }

    /// The tree of programs, on this machine.
    pub(crate) fn programs(&self) -> &Path {
        &self.tree.root
    }

    pub(crate) fn guests(&self) -> &[Guest] {
        &self.guests
    }

    pub(crate) fn guest(&self, number: usize) -> Result<&Guest> {
        self.guests
            .get(number)
            .with_context(|| format!("there is no guest {number}"))
    }

    /// The guests, and the emulator's control socket.
    pub(crate) fn parts(&mut self) -> (&[Guest], &mut Emulator) {
        (&self.guests, &mut self.emulator)
    }

    /// Puts a request to the emulator, such as `unplug 0`; `usb4ctl lab --help` names them.
    pub(crate) fn control(&mut self, line: &str) -> Result<Value> {
        self.emulator.ask(line)
    }

    /// Puts the emulator's counters beside the other logs.
    pub(crate) fn keep_stats(&mut self) -> Result<()> {
        let stats = self.control("stats")?;
        let text = serde_json::to_string_pretty(&stats).context("write the emulator's counters as text")?;
        fs::write(self.logs.join("emulator-stats.json"), text).context("keep the emulator's counters")
    }

    /// How long guests and emulator have waited for a processor of this machine so far, all threads together.
    pub(crate) fn waited(&self) -> Duration {
        let guests = self.guests.iter().map(|guest| guest.qemu.waited());
        guests.sum::<Duration>() + self.emulator.waited()
    }

    /// What the kernels have complained about since the last time this was asked.
    pub(crate) fn complaints(&mut self) -> Result<Vec<String>> {
        let mut found = vec![];
        for guest in &mut self.guests {
            let number = guest.number;
            found.extend(
                guest
                    .complaints()?
                    .into_iter()
                    .map(|line| format!("guest {number}: {line}")),
            );
        }
        Ok(found)
    }
}

/// A guest that takes commands.
pub(crate) struct Guest {
    pub(crate) number: usize,
    agent: Agent,
    pub(crate) console: Console,
    /// The console up to here has been looked at.
    seen: usize,
    marks: usize,
    reboots: usize,
    qemu: Child,
}

impl Guest {
    /// Stops its machine, as a debugger does, or lets it go on.
    pub(crate) fn stop(&self, stopped: bool) -> Result<()> {
        self.qemu.stop(stopped)
    }

    /// Starts a program in the guest.
    pub(crate) fn start(&self, argv: &[&str]) -> Result<Running<'_>> {
        self.agent.start(argv, None)
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Runs a shell script; its exit status is the caller's business.
    pub(crate) fn run(&self, script: &str, limit: Duration) -> Result<Output> {
        let running = self.agent.start_without_input(&["sh", "-c", script])?;
        running
            .wait(limit)
            .with_context(|| format!("guest {}: {script}", self.number))
    }

    /// Runs a shell script that has to succeed, and returns what it wrote to standard output.
    pub(crate) fn sh(&self, script: &str) -> Result<String> {
        self.sh_for(script, COMMAND)
    }

    /// The same with a limit of its own.
    pub(crate) fn sh_for(&self, script: &str, limit: Duration) -> Result<String> {
        let output = self.run(script, limit)?;
        if !output.ok() {
            bail!("guest {}: {script}: {output}", self.number);
        }
        Ok(output.text().trim_end().to_string())
    }

    /// Waits until a condition of the shell holds. Guests have nothing to wait on for most of what happens in them, so it
    /// is tried again and again.
    pub(crate) fn until(&self, condition: &str, limit: Duration) -> Result<()> {
        self.sh_for(&format!("until {condition}; do sleep 0.02; done"), limit)
            .map(drop)
    }

    /// Waits until somebody listens on a TCP port (state 0A in /proc/net/tcp).
    pub(crate) fn listening(&self, port: u16) -> Result<()> {
        self.until(
            &format!("grep -q ':{port:04X} [0:.A-F]* 0A ' /proc/net/tcp /proc/net/tcp6"),
            COMMAND,
        )
    }

    /// Reads a file of the guest.
    pub(crate) fn get(&self, path: &str) -> Result<Vec<u8>> {
        let output = self.start(&["cat", path])?.wait(COMMAND)?;
        if !output.ok() {
            bail!("read {path} in guest {}: {output}", self.number);
        }
        Ok(output.stdout)
    }

    /// Waits for a command that suspends the guest, and wakes it by its serial port, which has to be allowed to. A byte
    /// that comes before the guest sleeps wakes nobody, so they come again and again.
    pub(crate) fn wake(&self, mut asleep: Running<'_>) -> Result<Output> {
        const NUDGE: Duration = Duration::from_secs(2);
        let deadline = Instant::now() + COMMAND;
        while Instant::now() < deadline {
            interrupt::check()?;
            match asleep.said(NUDGE)? {
                Said::End(end) => return Ok(Output::silent(end)),
                Said::Output(_) => {}
                Said::Nothing => self.console.write(b"\n")?,
            }
        }
        bail!("guest {} does not wake up", self.number)
    }

    /// Brings up the out-of-band network, on which guest N is 10.99.0.N+1.
    pub(crate) fn network(&self) -> Result<()> {
        let address = switch::address(self.number);
        self.sh(&format!(
            "modprobe virtio_net && ip addr add {address}/24 dev eth0 && ip link set eth0 up"
        ))?;
        Ok(())
    }

    /// Everything its kernel has said so far is on the console: returns the number of the line after it.
    fn mark(&mut self) -> Result<usize> {
        self.marks += 1;
        let mark = format!("lab: mark {}", self.marks);
        self.sh(&format!("echo '<6>{mark}' > /dev/kmsg"))?;
        // The mark ends its line, so 1 is not taken for 10.
        Ok(self.console.wait_end(&mark, self.seen, COMMAND)? + 1)
    }

    fn complaints(&mut self) -> Result<Vec<String>> {
        let end = self.mark()?;
        let lines = self.console.lines(self.seen);
        let lines = lines.get(..end - self.seen).unwrap_or(&lines);
        let found = kernel_log::complaints(lines);
        self.seen = end;
        Ok(found)
    }
}

/// A guest whose QEMU has been started.
struct Booting {
    number: usize,
    qemu: Child,
    console: Pipes,
    agent: UnixListener,
    patience: u32,
}

impl Booting {
    fn start(number: usize, lab: &Lab) -> Result<Booting> {
        let (plan, folder) = (&lab.plan, &lab.folder);
        let listen = |name: &str| -> Result<(PathBuf, UnixListener)> {
            let path = folder.join(&format!("{name}{number}"));
            let listener = UnixListener::bind(&path).with_context(|| format!("bind {}", path.display()))?;
            Ok((path, listener))
        };
        let console = Pipes::create(folder.join(&format!("console{number}")))?;
        let (agent_path, agent) = listen("agent")?;
        let per_host = plan.topology.controllers;
        let routers = lab
            .emulator
            .routers()
            .iter()
            .skip(number * per_host)
            .take(per_host);
        let machine = Machine {
            guest: number,
            memory_mib: plan.memory_mib,
            cpus: plan.cpus,
            kernel: lab.kernel.image(),
            initrd: folder.join("initrd"),
            parameters: plan.parameters.clone(),
            routers: routers.cloned().collect(),
            console: console.path().to_path_buf(),
            agent: agent_path,
            network: lab.switch.port(number),
            iommu: plan.iommu,
            shares: lab.shares.clone(),
        };
        let mut command = lab.tree.program("usr/bin/qemu-system-x86_64");
        machine.arguments(&lab.tree.root, &mut command);
        let log = lab.logs.join(format!("qemu{number}.log"));
        let qemu = Child::start(&command, plan.limit, &log)?;
        Ok(Booting {
            number,
            qemu,
            console,
            agent,
            patience: plan.patience,
        })
    }

    fn booted(mut self, deadline: Instant, log: &Path, task: &mut Task) -> Result<Guest> {
        // QEMU has opened the console by then, as that is named first.
        let agent = accept(&self.agent, &mut self.qemu, deadline)?;
        let console = Console::new(&self.console, log, self.patience)?;
        let agent = Agent::new(agent, self.patience)?;
        loop {
            interrupt::check()?;
            task.tick();
            if agent
                .greeted(Duration::from_millis(100))
                .with_context(|| self.ended(&console))?
            {
                break;
            }
            if Instant::now() > deadline {
                bail!("guest {} has not booted; {}", self.number, self.ended(&console));
            }
        }
        Ok(Guest {
            number: self.number,
            agent,
            console,
            seen: 0,
            marks: 0,
            reboots: 0,
            qemu: self.qemu,
        })
    }

    /// What QEMU and the console said last.
    fn ended(&self, console: &Console) -> String {
        let lines = console.lines(console.len().saturating_sub(15));
        format!("QEMU: {}\nconsole: {}", self.qemu.words(), lines.join("\n"))
    }
}

/// Waits for QEMU to connect.
fn accept(listener: &UnixListener, qemu: &mut Child, deadline: Instant) -> Result<UnixStream> {
    let slice = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    loop {
        interrupt::check()?;
        let mut wanted = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut wanted, Some(&slice)).unwrap_or(0) > 0 {
            return Ok(listener.accept().context("accept QEMU's connection")?.0);
        }
        if let Some(status) = qemu.ended() {
            bail!("QEMU ended: {status}\n{}", qemu.words());
        }
        if Instant::now() > deadline {
            bail!("QEMU has not connected\n{}", qemu.words());
        }
    }
}

/// What the kernel unpacks: the cached part, then what is this run's own.
fn write_initrd(to: &Path, base: &Path, agent: &Path, files: &[(String, PathBuf)]) -> Result<()> {
    let mut own = Archive::default();
    for folder in ["dev", "proc", "sys", "tmp", "run", "root", "mnt", "var/tmp"] {
        own.folder(folder);
    }
    own.file("init", 0o755, include_bytes!("init.sh").as_slice());
    own.file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/bash\n");
    own.file("etc/group", 0o644, "root:x:0:\n");
    own.file("etc/hosts", 0o644, "127.0.0.1 localhost\n");
    own.file("etc/nsswitch.conf", 0o644, "hosts: files\n");
    own.file(shared::RSH.trim_start_matches('/'), 0o755, shared::RSH_SCRIPT);
    own.file("root/.bashrc", 0o644, "PS1='\\h:\\w# '\nalias ll='ls -l'\n");
    own.copy("usr/bin/usb4-lab-agent", agent)?;
    for (inside, path) in files {
        own.copy(inside.trim_start_matches('/'), path)?;
    }
    fs::copy(base, to).context("copy the guests' root")?;
    let mut file = fs::File::options()
        .append(true)
        .open(to)
        .context("open the guests' root")?;
    std::io::Write::write_all(&mut file, &own.to_bytes()?).context("write the guests' root")
}
