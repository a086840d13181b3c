//! Processes that mean it ill, started and killed at random.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use usb4_ring_abi::{PRODUCER_WORD, uapi};

use crate::Rig;
use crate::client::{ALL, Call, Client};
use crate::hostile::{Rng, greet_itself, loner};
use crate::party::Party;

/// Longest life of a hostile process, in milliseconds.
const LIFE: usize = 120;

/// Starts `rounds` hostile processes, one after the other, and kills each at some moment. A client that minds its own
/// business must not notice.
pub(crate) fn run(rig: &Rig, rounds: u32) -> Result<()> {
    let mut rng = Rng(rig.seed);
    let mut neighbour = loner(rig)?;
    for round in 0..rounds {
        let seed = rng.next();
        let mut hostile = Command::new(std::env::current_exe()?)
            .args(["--device", &rig.device, "--seed", &seed.to_string(), "--hostile"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting a hostile process")?;
        let until = std::time::Instant::now() + Duration::from_millis(rng.below(LIFE) as u64);
        let mut met = greet_itself(&mut neighbour);
        while met.is_ok() && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            met = greet_itself(&mut neighbour);
        }
        hostile.kill().context("killing it")?;
        hostile.wait().context("waiting for it")?;
        met.and_then(|()| greet_itself(&mut neighbour))
            .with_context(|| format!("round {round}, beside a hostile process of seed {seed}"))?;
    }
    // There is as much room as ever.
    greet_itself(&mut loner(rig)?)
}

/// Does harm, as well as it can, until it is killed. Nothing it is told counts.
pub(crate) fn be_hostile(rig: &Rig) -> Result<()> {
    let mut rng = Rng(rig.seed);
    let mut parties: Vec<Party> = vec![];
    let mut memory = vec![0_u8; 1 << 20];
    loop {
        if let Ok(party) = loner(rig) {
            parties.push(party);
        }
        let chosen = rng.below(parties.len());
        let Some(party) = parties.get(chosen) else {
            bail!("the device cannot be opened");
        };
        match rng.below(9) {
            0 | 1 => scribble(&mut rng, party),
            2 => wild_arguments(&mut rng, &party.client),
            3 => wild_regions(&mut rng, &party.client, &mut memory),
            4 => undermine(&mut rng, party),
            5 => outlive(&party.client)?,
            6 => drop(parties.swap_remove(chosen)),
            7 => parties.clear(),
            _ => return Err(become_another(rig, &mut rng, &party.client)),
        }
    }
}

/// Writes what it likes into queues, and has them looked at.
fn scribble(rng: &mut Rng, party: &Party) {
    for _ in 0..50 {
        let words = party.maps[rng.below(3)].words();
        match rng.below(4) {
            0 => words[PRODUCER_WORD].store(rng.next() % 20, Ordering::Relaxed),
            1 => words[rng.below(words.len())].store(rng.next(), Ordering::Relaxed),
            // An entry that may be one, of any length.
            2 => {
                let at = 32 + rng.below(words.len().saturating_sub(40));
                let value = rng.next() >> rng.below(64);
                words[at].store(value, Ordering::Relaxed);
            }
            _ => enter(rng, party),
        }
    }
}

fn enter(rng: &mut Rng, party: &Party) {
    let flags = [uapi::ENTER_SUBMIT, uapi::ENTER_PROGRESS, uapi::ENTER_WAIT];
    let flags = flags.iter().filter(|_| rng.next() & 1 == 0).sum();
    let _ = party
        .client
        .enter(flags, party.ep.ep, party.cq, rng.next() % 1_000_000);
}

/// Any ioctl with any bytes as its argument.
fn wild_arguments(rng: &mut Rng, client: &Client) {
    for _ in 0..20 {
        let Call { number, size, .. } = ALL[rng.below(ALL.len())];
        // Whether the address it waits at is mapped does not matter; that it waits for ever does.
        let mut bytes: Vec<u8> = (0..size)
            .map(|_| rng.next().to_le_bytes()[0] >> rng.below(8))
            .collect();
        bytes[..4].copy_from_slice(&size.to_ne_bytes());
        bytes[4..8].fill(0);
        if number != uapi::IOC_ENTER && number != uapi::IOC_PEERS {
            let _ = client.call_bytes(number, &mut bytes);
        }
    }
}

/// Registers memory of any address and length, and gives some of it back.
fn wild_regions(rng: &mut Rng, client: &Client, memory: &mut [u8]) {
    let at = memory.as_mut_ptr().addr() as u64;
    for _ in 0..10 {
        let len = rng.next() >> rng.below(64);
        let _ = client.reg(rng.next() >> rng.below(64), len, (rng.next() & 7) as u32);
        let all = uapi::ACCESS_REMOTE_READ | uapi::ACCESS_REMOTE_WRITE;
        if let Ok(region) = client.reg(at, 1 + len % memory.len() as u64, all) {
            if rng.next() & 1 == 0 {
                let _ = client.dereg(region.local_key);
            }
        }
    }
}

/// Destroys what is in use, by itself or by another thread.
fn undermine(rng: &mut Rng, party: &Party) {
    let (client, cq) = (&party.client, party.cq);
    std::thread::scope(|scope| {
        scope.spawn(move || client.enter(uapi::ENTER_WAIT, 0, cq, 3_000_000));
        let _ = party.client.destroy(uapi::IOC_DESTROY_CQ, party.cq);
        enter(rng, party);
        let _ = party.client.destroy(uapi::IOC_DESTROY_EP, party.ep.ep);
        let _ = party.client.destroy(uapi::IOC_DESTROY_CQ, party.cq);
    });
}

/// Leaves the descriptor with others, who hold it for longer than this process lives.
fn outlive(client: &Client) -> Result<()> {
    client.share()?;
    let _ = Command::new("sh").args(["-c", "sleep 0.3 & sleep 0.2"]).spawn();
    Ok(())
}

/// Goes on as another program, with the descriptor of this one.
fn become_another(rig: &Rig, rng: &mut Rng, client: &Client) -> anyhow::Error {
    if let Err(error) = client.share() {
        return error;
    }
    let seed = rng.next().to_string();
    let error = match std::env::current_exe() {
        Ok(own) => Command::new(own)
            .args(["--device", &rig.device, "--seed", &seed, "--hostile"])
            .exec(),
        Err(error) => error,
    };
    error.into()
}
