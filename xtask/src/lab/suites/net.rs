//! IP over the emulated cable: what several suites do with thunderbolt_net.

use crate::lab::agent::Output;
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use anyhow::{Context, Result, bail};
use std::time::{Duration, Instant};

/// How long drivers may take to find each other: two lanes take 10 s of protocol timers, a late peer is noticed by
/// polling, and the machine may be busy.
pub(crate) const SETTLE: Duration = Duration::from_secs(90);

/// How late an answer to a ping may be.
const LATE: Duration = Duration::from_secs(10);

/// Loads thunderbolt_net everywhere and waits until guests 0 and 1 reach each other.
pub(crate) fn up(lab: &mut Lab) -> Result<()> {
    for guest in lab.guests() {
        guest.sh("modprobe thunderbolt_net")?;
    }
    join(lab)
}

/// A guest's address on the cable.
pub(crate) fn address(guest: usize) -> String {
    format!("10.7.0.{}", guest + 1)
}

/// Waits until guests 0 and 1 reach each other. Network devices come and go with the peer, and a device has neither
/// address nor state when it comes, so each is set up as often as it takes.
pub(crate) fn join(lab: &mut Lab) -> Result<()> {
    let deadline = Instant::now() + SETTLE;
    let (guests, emulator) = lab.parts();
    let [one, other, ..] = guests else {
        bail!("two guests are wanted");
    };
    loop {
        set_up([one, other], emulator)?;
        let script = format!("ping -q -c 1 -W 1 {}", address(1));
        if one.run(&script, SETTLE)?.ok() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let states = [one, other].map(|guest| guest.sh("ip addr show; ls /sys/bus/thunderbolt/devices"));
            let [one, other] = states.map(Result::unwrap_or_default);
            bail!("the guests do not reach each other\n{one}\n{other}");
        }
    }
}

/// Sets the network devices at both ends of cable 0 up, where there are any that are down (bit 0 of the flags, `IFF_UP`).
pub(crate) fn set_up(guests: [&Guest; 2], emulator: &mut Emulator) -> Result<()> {
    const DOWN: &str = "read -r flags < /sys/class/net/thunderbolt0/flags && [ $((flags & 1)) = 0 ]";
    let mut down = vec![];
    for guest in guests {
        if guest.run(DOWN, SETTLE)?.ok() {
            down.push(guest);
        }
    }
    if down.is_empty() {
        return Ok(());
    }
    quietly(emulator, 1, || {
        for guest in down {
            let address = address(guest.number);
            let script = format!(
                "ip addr replace {address}/24 dev thunderbolt0 && ip link set thunderbolt0 mtu 65522 up"
            );
            // The device may go while this runs.
            guest.run(&script, SETTLE)?;
        }
        Ok(())
    })
}

/// Opens network devices, which `open` does, while no control packet crosses the first `cables` cables.
///
/// From the moment the kernel opens a device thunderbolt_net believes logins, but it has rings only when it has opened it
/// (`tbnet_handle_packet` asks `netif_running()`, which is true before `tbnet_open` is called, and `tbnet_connected_work`
/// starts `net->tx_ring.ring`, in drivers/net/thunderbolt/main.c): if both sides' logins are answered in between, it
/// follows a null pointer. And a login that it believes before `start_login` is forgotten, but not repeated. Neither can
/// happen if what it sends is lost. Both sides try again after the time they wait for an answer.
pub(crate) fn quietly(
    emulator: &mut Emulator,
    cables: usize,
    open: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut lose = |ppm: u32| -> Result<()> {
        (0..cables).try_for_each(|cable| emulator.ask(&format!("loss {cable} {ppm} --control")).map(drop))
    };
    lose(1_000_000)?;
    let opened = open();
    lose(0)?;
    opened
}

/// Waits until both ends of a device's connection have logged in to each other.
pub(crate) fn carrier(guest: &Guest, device: &str) -> Result<()> {
    guest.until(
        &format!("[ \"$(cat /sys/class/net/{device}/carrier)\" = 1 ]"),
        SETTLE,
    )
}

/// What ping reports.
#[derive(Debug, PartialEq)]
pub(crate) struct Ping {
    pub(crate) sent: u32,
    /// Average round trip in milliseconds.
    pub(crate) average_ms: f64,
}

/// Pings `to`; every request must be answered.
///
/// ping itself waits for the last answers no longer than twice the longest round trip it has seen, which a busy machine
/// exceeds, so the kernel's counters decide.
pub(crate) fn ping(guest: &Guest, to: &str, arguments: &str) -> Result<Ping> {
    let before = echoes(guest)?;
    let output = guest.run(&format!("ping -q {arguments} {to}"), Duration::from_secs(60))?;
    let ping = read_ping(&output).with_context(|| format!("ping {to}: {output}"))?;
    let deadline = Instant::now() + LATE;
    loop {
        let now = echoes(guest)?;
        let (sent, answered) = (now.0 - before.0, now.1 - before.1);
        if answered >= sent {
            return Ok(ping);
        }
        if Instant::now() > deadline {
            bail!("ping {arguments} {to}: {answered} of {sent} answered");
        }
    }
}

/// Echo requests sent and answers received, ever.
fn echoes(guest: &Guest) -> Result<(u64, u64)> {
    let text = guest.sh("cat /proc/net/snmp")?;
    read_echoes(&text).with_context(|| format!("no counters in\n{text}"))
}

/// Reads the two lines that begin with `Icmp:`: titles, values.
fn read_echoes(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp:"));
    let (titles, values) = (lines.next()?, lines.next()?);
    let of = |name: &str| {
        let at = titles.split_whitespace().position(|title| title == name)?;
        values.split_whitespace().nth(at)?.parse().ok()
    };
    Some((of("OutEchos")?, of("InEchoReps")?))
}

fn read_ping(output: &Output) -> Option<Ping> {
    let text = output.text();
    let counts = text.lines().find(|line| line.contains("packets transmitted"))?;
    let times = text.lines().find(|line| line.starts_with("rtt min/avg/max"))?;
    let sent = counts.split_whitespace().next()?;
    Some(Ping {
        sent: sent.parse().ok()?,
        average_ms: times.split(" = ").nth(1)?.split('/').nth(1)?.parse().ok()?,
    })
}

/// Mbit/s of a TCP stream from `from` to the other guest, and back if `reverse`, over `span` seconds.
pub(crate) fn iperf3(from: &Guest, to: &Guest, reverse: bool, span: u32) -> Result<f64> {
    let address = address(to.number);
    let server = to.start(&["iperf3", "-s", "-1"])?;
    to.listening(5201)?;
    let direction = if reverse { "-R" } else { "" };
    let script = format!("iperf3 -c {address} -t {span} -i 0 {direction}");
    let text = from.sh_for(&script, Duration::from_secs(60))?;
    server.wait(Duration::from_secs(60))?;
    let rate = read_iperf3(&text).with_context(|| format!("no result in\n{text}"))?;
    if rate <= 0.0 {
        bail!("iperf3 moved nothing\n{text}");
    }
    Ok(rate)
}

/// The receiver's rate in Mbit/s, from lines such as
/// `[  5]   0.00-2.00   sec  92.1 MBytes   386 Mbits/sec                  receiver`.
fn read_iperf3(text: &str) -> Option<f64> {
    let line = text.lines().rev().find(|line| line.ends_with("receiver"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let unit = words.iter().position(|word| word.ends_with("bits/sec"))?;
    let rate: f64 = words.get(unit.checked_sub(1)?)?.parse().ok()?;
    Some(match *words.get(unit)? {
        "Gbits/sec" => rate * 1000.0,
        "Kbits/sec" => rate / 1000.0,
        "bits/sec" => rate / 1e6,
        _ => rate,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_lab_agent::End;

    #[test]
    fn what_ping_reports_is_read() {
        let text = "PING 10.7.0.2 (10.7.0.2) 56(84) bytes of data.\n\n--- 10.7.0.2 ping statistics ---\n\
            20 packets transmitted, 19 received, 5% packet loss, time 1026ms\n\
            rtt min/avg/max/mdev = 0.551/0.875/1.742/0.309 ms\n";
        let output = Output {
            end: End::Status(0),
            stdout: text.into(),
            stderr: vec![],
        };
        let ping = read_ping(&output).unwrap();
        assert_eq!(ping.sent, 20);
        assert!((ping.average_ms - 0.875).abs() < 1e-9);
    }

    #[test]
    fn echoes_are_counted_by_their_titles() {
        let text = "Ip: Forwarding\nIp: 2\nIcmp: InMsgs InEchoReps OutEchos\nIcmp: 9 7 8\nIcmpMsg: InType0\n";
        assert_eq!(read_echoes(text), Some((8, 7)));
        assert_eq!(read_echoes("Icmp: InMsgs\n"), None);
    }

    #[test]
    fn the_receivers_rate_counts() {
        let text = "[  5]   0.00-2.00   sec  92.1 MBytes   386 Mbits/sec    0            sender\n\
            [  5]   0.00-2.04   sec  91.2 MBytes  1.5 Gbits/sec                  receiver\n\niperf Done.";
        assert_eq!(read_iperf3(text), Some(1500.0));
        assert_eq!(read_iperf3("iperf3: error"), None);
    }
}
