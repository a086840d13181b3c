//! A neighbour that says what it likes: frames and control messages nobody with a session has sent. Nothing of that is
//! believed, and nobody is disturbed.

use super::{check, seen};
use crate::lab::agent::{Output, Said};
use crate::lab::emulator::Emulator;
use crate::lab::session::{Guest, Lab};
use crate::lab::suites::RING;
use crate::lab::suites::Tag::{Ci, Full};
use crate::lab::suites::load::{Load, MOVING};
use crate::lab::suites::net::SETTLE;
use crate::lab::suites::random::Random;
use crate::lab::suites::{Group, Outcome, rails, rdma};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::{Duration, Instant};
use usb4_nhi_control::capture::{Kind, Reader};
use usb4_nhi_model::{Nhi, Place};
use usb4_wire::{CONTROL_LEN, Control, ControlKind, NodeId};

pub(super) const GROUPS: &[Group] = &[
    Group {
        name: "neighbour",
        topology: "pair,lanes=1",
        plan: |_| {},
        prepare: rdma::prepare,
        checks: &[
            check("forged-frames", Ci, forged_frames),
            check("forged-control", Ci, forged_control),
            check("control-flood", Ci, control_flood),
        ],
    },
    // A peer that has a session knows what its own frames must carry. It can end that session, and no other.
    Group {
        name: "hostile-peer",
        topology: "chain,lanes=1",
        plan: |_| {},
        prepare: |lab| super::three::links(lab, &[1, 2, 1]),
        checks: &[check("wild-requests", Full, wild_requests)],
    },
];

/// PDFs of a frame's first and last packet (docs/spec/usb4.md, section 3).
const PDFS: &str = "1 2";

/// A frame or control packet that has been handed to a host.
struct Heard {
    nhi: usize,
    control: bool,
    bytes: Vec<u8>,
}

/// What has been handed to hosts while something was done: frames of our ring, and control packets.
fn heard(
    emulator: &mut Emulator,
    file: &Path,
    what: impl FnOnce(&mut Emulator) -> Result<()>,
) -> Result<Vec<Heard>> {
    emulator.ask(&format!("capture start {} --all", file.display()))?;
    let done = what(emulator);
    emulator.ask("capture stop")?;
    done?;
    let input = File::open(file).with_context(|| format!("open {}", file.display()))?;
    let mut all = vec![];
    for record in Reader::new(BufReader::new(input))? {
        let record = record?;
        let (at, control) = match record.kind {
            Kind::Control { at, .. } => (at, true),
            Kind::Frame { at, hop: RING, .. } => (at, false),
            _ => continue,
        };
        if let Place::ToHost(Nhi(nhi)) = at {
            all.push(Heard {
                nhi,
                control,
                bytes: record.bytes,
            });
        }
    }
    Ok(all)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Does something to a link with a load, which must neither end nor complain, and which stays up.
fn undisturbed(
    lab: &mut Lab,
    what: impl FnOnce(&[Guest], &mut Emulator, &Path) -> Result<String>,
) -> Result<Outcome> {
    let from = rdma::ends(lab);
    let file = lab.logs.join("neighbour.pcapng");
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let load = Load::start(one, other, 16384)?;
    rails::moves(emulator, 0, MOVING)?;
    let words = what(guests, emulator, &file)?;
    rails::moves(emulator, 0, 1000)?;
    load.end()?;
    for (guest, from) in guests.iter().zip(from) {
        if guest.console.wait(rdma::DOWN, from, Duration::ZERO).is_ok() {
            bail!("guest {}: the link went down", guest.number);
        }
    }
    let answered = rdma::ping(one, other, 20)?;
    seen(format!("{words}; nobody noticed, and {answered}"))
}

/// Frames dropped by both guests' links, of each kind that sysfs counts; nothing where a module does not show that.
fn dropped(guests: &[Guest]) -> Result<Vec<(&'static str, u64)>> {
    const COUNTERS: [&str; 4] = ["rx_malformed", "rx_corrupt", "rx_wrong_tag", "rx_duplicate"];
    let mut sums = vec![];
    for guest in guests {
        if !guest.run("[ -e /sys/class/usb4_rdma ]", SETTLE)?.ok() {
            return Ok(sums);
        }
    }
    for name in COUNTERS {
        let mut sum = 0;
        for guest in guests {
            let text = guest.sh(&format!("cat /sys/class/usb4_rdma/link*/statistics/{name}"))?;
            let counts: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
            sum += counts
                .with_context(|| format!("{name}: {text}"))?
                .iter()
                .sum::<u64>();
        }
        sums.push((name, sum));
    }
    Ok(sums)
}

/// Noise, recorded frames again, and recorded frames with something changed.
fn forged_frames(lab: &mut Lab) -> Result<Outcome> {
    const FRAMES: usize = 600;
    let mut random = Random::new(1);
    undisturbed(lab, |guests, emulator, file| {
        let recorded = heard(emulator, file, |emulator| rails::moves(emulator, 0, 200))?;
        let recorded: Vec<Heard> = recorded.into_iter().filter(|heard| !heard.control).collect();
        if recorded.is_empty() {
            bail!("no frame was recorded");
        }
        let before = dropped(guests)?;
        let mut taken = 0;
        for number in 0..FRAMES {
            let frame = recorded.get(random.index(recorded.len())).context("none")?;
            let mut bytes = frame.bytes.clone();
            match number % 4 {
                // Noise.
                0 => bytes = (0..=random.index(4095)).map(|_| random.byte()).collect(),
                // An old frame.
                1 => {}
                // Another tag, and all right else.
                2 => {
                    bytes.iter_mut().skip(8).take(8).for_each(|byte| *byte ^= 0x5a);
                    seal(&mut bytes);
                }
                // A bit flipped in the header.
                _ => {
                    let at = random.index(40.min(bytes.len()));
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << random.below(8);
                    }
                }
            }
            // A ring that has no buffer at this moment takes none.
            let request = format!("inject frame {} {RING} {PDFS} {}", frame.nhi, hex(&bytes));
            taken += usize::from(emulator.ask(&request).is_ok());
        }
        if taken < FRAMES / 2 {
            bail!("only {taken} of {FRAMES} frames were taken");
        }
        rails::moves(emulator, 0, 200)?;
        let after = dropped(guests)?;
        let counted: Vec<(&str, u64)> = before
            .iter()
            .zip(&after)
            .map(|((name, before), (_, after))| (*name, after - before))
            .collect();
        let total: u64 = counted.iter().map(|(_, count)| count).sum();
        let shown = !counted.is_empty();
        if shown && (total < taken as u64 || counted.iter().any(|(_, count)| *count == 0)) {
            bail!("{taken} forged frames, and dropped: {counted:?}");
        }
        Ok(format!("{taken} forged frames, dropped: {counted:?}"))
    })
}

/// Bytes of a control packet before the message in it (`struct packet` in kmod/service.c).
const BEFORE_MESSAGE: usize = 64;
/// CRC of a control packet, which the emulator adds.
const CRC: usize = 4;

/// The message of a control packet, if it is one of ours. On the cable each double word is turned around.
fn message(packet: &[u8]) -> Option<Control> {
    let message = packet.get(BEFORE_MESSAGE..packet.len().checked_sub(CRC)?)?;
    Control::parse(&turned(message), crc32c::crc32c_append).ok()
}

fn turned(bytes: &[u8]) -> Vec<u8> {
    let words = bytes.chunks(4);
    words.flat_map(|word| word.iter().rev()).copied().collect()
}

/// The packet with another message in it, as `inject control` wants it.
fn packet(template: &[u8], message: &[u8]) -> String {
    let mut bytes = template.get(..BEFORE_MESSAGE).unwrap_or_default().to_vec();
    bytes.extend(turned(message));
    hex(&bytes)
}

/// Has the link brought up once more; returns the control messages that were handed to guests meanwhile.
fn bring_up(lab: &mut Lab) -> Result<Vec<(Heard, Control)>> {
    let file = lab.logs.join("bring-up.pcapng");
    let from = rdma::ends(lab);
    let (guests, emulator) = lab.parts();
    let heard = heard(emulator, &file, |emulator| {
        emulator.ask("unplug 0")?;
        for (guest, from) in guests.iter().zip(&from) {
            guest.console.wait(rdma::DOWN, *from, SETTLE)?;
        }
        emulator.ask("plug 0")?;
        for (guest, from) in guests.iter().zip(&from) {
            let down = guest.console.wait(rdma::DOWN, *from, SETTLE)?;
            guest.console.wait(rdma::UP, down, SETTLE)?;
        }
        Ok(())
    })?;
    let control = heard.into_iter().filter(|heard| heard.control);
    let messages = control.filter_map(|heard| message(&heard.bytes).map(|message| (heard, message)));
    Ok(messages.collect())
}

/// Control messages of an earlier session again, of a foreign host, of this host itself, with other tags and nonces; and
/// some that are none.
fn forged_control(lab: &mut Lab) -> Result<Outcome> {
    let mut messages = vec![];
    // The second session is the one that is on when the messages of the first come again.
    for _ in 0..2 {
        messages.extend(bring_up(lab)?);
    }
    let kinds = [
        ControlKind::Offer,
        ControlKind::Accept,
        ControlKind::PathsUp,
        ControlKind::PathsUpAck,
    ];
    for kind in kinds {
        if !messages.iter().any(|(_, message)| message.kind == kind) {
            bail!("no {kind:?} was recorded");
        }
    }
    let mut random = Random::new(2);
    undisturbed(lab, |guests, emulator, _| {
        let before: Vec<Counted> = guests.iter().map(Counted::of).collect::<Result<_>>()?;
        let mut sent = vec![0; guests.len()];
        let mut bad = 0;
        for (heard, recorded) in &messages {
            let nhi = heard.nhi;
            let (guest, before) = guests
                .get(nhi)
                .zip(before.get(nhi))
                .context("a message for nobody")?;
            for forged in forgeries(recorded, &mut random) {
                bad += u64::from(Control::parse(&forged, crc32c::crc32c_append).is_err());
                let packet = packet(&heard.bytes, &forged);
                emulator.ask(&format!("inject control {nhi} {XDOMAIN_REQUEST} {packet}"))?;
                sent[nhi] += 1;
                if sent[nhi] % AT_A_TIME == 0 {
                    before.and(guest, sent[nhi])?;
                }
            }
        }
        let mut counted = Counted::default();
        for ((guest, before), sent) in guests.iter().zip(&before).zip(&sent) {
            before.and(guest, *sent)?;
            counted.add(&Counted::of(guest)?, before);
        }
        let sent: u64 = sent.iter().sum();
        if counted.malformed > bad || counted.malformed + counted.dropped < bad {
            bail!("{sent} forged control messages, {bad} of them malformed; {counted:?}");
        }
        Ok(format!(
            "{sent} forged control messages, {bad} of them malformed; {counted:?}"
        ))
    })
}

/// Offers, each of which is answered, faster than they can be. Meanwhile the module does what it is told: it leaves.
fn control_flood(lab: &mut Lab) -> Result<Outcome> {
    let messages = bring_up(lab)?;
    let offer = |(heard, message): &&(Heard, Control)| heard.nhi == 0 && message.kind == ControlKind::Offer;
    let (heard, offer) = messages.iter().find(offer).context("no offer was recorded")?;
    let (guests, emulator) = lab.parts();
    let [one, other] = guests else {
        bail!("two guests are wanted");
    };
    let from = other.console.len();
    let words = leaves_in_flood(one, emulator, &heard.bytes, offer)?;
    other.console.wait(rdma::DOWN, from, SETTLE)?;
    let from = rdma::ends(lab);
    rdma::load(lab)?;
    rdma::up(lab, &from)?;
    let answered = rdma::ping(lab.guest(0)?, lab.guest(1)?, 20)?;
    seen(format!("{words}; loaded again, {answered}"))
}

/// Floods guest 0 with offers until its module has been unloaded.
fn leaves_in_flood(
    guest: &Guest,
    emulator: &mut Emulator,
    template: &[u8],
    offer: &Control,
) -> Result<String> {
    const BOUND: Duration = Duration::from_secs(30);
    let mut random = Random::new(4);
    let mut sent: u32 = 0;
    let mut flood = |emulator: &mut Emulator| {
        for _ in 0..64 {
            let mut forged = *offer;
            forged.body.nonce = random.next() | 1;
            let packet = packet(template, &forged.emit(crc32c::crc32c_append));
            // A ring that has no buffer at this moment takes none.
            let taken = emulator.ask(&format!("inject control 0 {XDOMAIN_REQUEST} {packet}"));
            sent += u32::from(taken.is_ok());
        }
        sent
    };
    let before = Counted::of(guest)?;
    flood(emulator);
    before.and(guest, 16)?;
    let began = Instant::now();
    let mut leaving = guest.start(&["rmmod", "usb4_rdma"])?;
    loop {
        let sent = flood(emulator);
        let took = began.elapsed();
        if let Said::End(end) = leaving.said(Duration::ZERO)? {
            let output = Output::silent(end);
            if !output.ok() {
                bail!("rmmod: {output}");
            }
            return Ok(format!("{sent} offers, and rmmod took {} ms", took.as_millis()));
        }
        if took > BOUND {
            bail!("rmmod has not come back in {BOUND:?}, in which {sent} offers were made");
        }
    }
}

/// Messages a guest has room for (`INBOX` in kmod/rail.h is 8, `TB_CTL_RX_PKG_COUNT` in drivers/thunderbolt/ctl.c 10), but
/// for some of the peer's own.
const AT_A_TIME: u64 = 5;

/// Where a guest counts the control messages of its one cable.
const RAIL: &str = "/sys/bus/thunderbolt/devices/*.*/usb4_rdma";

/// Control messages a guest has looked at; of these, those that were none; and those there was no room for.
#[derive(Debug, Default)]
struct Counted {
    received: u64,
    malformed: u64,
    dropped: u64,
}

impl Counted {
    fn of(guest: &Guest) -> Result<Counted> {
        let text = guest.sh(&format!(
            "cd {RAIL} && cat control_rx control_malformed control_dropped"
        ))?;
        let counts: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
        match counts.as_deref() {
            Ok([received, malformed, dropped]) => Ok(Counted {
                received: *received,
                malformed: *malformed,
                dropped: *dropped,
            }),
            _ => bail!("control_rx, control_malformed and control_dropped are {text}"),
        }
    }

    /// Waits until the guest has counted that many more.
    fn and(&self, guest: &Guest, more: u64) -> Result<()> {
        let wanted = self.received + self.dropped + more;
        guest.until(
            &format!("cd {RAIL} && [ $(($(cat control_rx) + $(cat control_dropped))) -ge {wanted} ]"),
            SETTLE,
        )
    }

    /// Adds what was counted between two looks.
    fn add(&mut self, after: &Counted, before: &Counted) {
        self.received += after.received - before.received;
        self.malformed += after.malformed - before.malformed;
        self.dropped += after.dropped - before.dropped;
    }
}

/// PDF of what our control messages are (`TB_CFG_PKG_XDOMAIN_REQ`).
const XDOMAIN_REQUEST: u8 = 6;

/// A recorded message as it was, and others made of it.
fn forgeries(recorded: &Control, random: &mut Random) -> Vec<Vec<u8>> {
    let bytes = |message: &Control| message.emit(crc32c::crc32c_append).to_vec();
    let mut all = vec![bytes(recorded)];
    let mut foreign = *recorded;
    foreign.body.node_id = NodeId::from_halves(random.next(), random.next());
    all.push(bytes(&foreign));
    let mut guessed = *recorded;
    guessed.body.tag = random.next() | 1;
    guessed.body.nonce = random.next() | 1;
    guessed.body.echo = random.next() | 1;
    guessed.body.join = random.next() | 1;
    for kind in [
        ControlKind::Offer,
        ControlKind::Accept,
        ControlKind::PathsUp,
        ControlKind::PathsUpAck,
        ControlKind::Bye,
        ControlKind::ByeAck,
        ControlKind::Reset,
        ControlKind::Refuse,
    ] {
        guessed.kind = kind;
        guessed.body.reason = u32::from(kind == ControlKind::Refuse);
        all.push(bytes(&guessed));
    }
    let mut damaged = bytes(recorded);
    if let Some(byte) = damaged.get_mut(random.index(CONTROL_LEN)) {
        *byte ^= 1 << random.below(8);
    }
    all.push(damaged);
    all.push((0..CONTROL_LEN).map(|_| random.byte()).collect());
    all
}

/// Frames with the tag of a session of guest 1's, as if the guest at the other end had sent them: packet numbers from the
/// future and requests that are none. Their link may go; it comes back. That of guest 1 and the third one goes on.
fn wild_requests(lab: &mut Lab) -> Result<Outcome> {
    const FRAMES: usize = 400;
    let file = lab.logs.join("hostile-peer.pcapng");
    let mut random = Random::new(3);
    // Cable 0 leads to guest 0, cable 1 to guest 2. Whichever rail came first has the ring.
    let to_first = format!("grep -q -x {RING} /sys/bus/thunderbolt/devices/0-1.*/usb4_rdma/rx_ring");
    let hostile = usize::from(!lab.guest(1)?.run(&to_first, SETTLE)?.ok());
    let bystander = 1 - hostile;
    let (guests, emulator) = lab.parts();
    let [first, middle, last] = guests else {
        bail!("three guests are wanted");
    };
    let ends = [first, last];
    let bystanders = Load::start(ends[bystander], middle, 16384)?;
    let load = Load::start(ends[hostile], middle, 16384)?;
    rails::moves(emulator, hostile, MOVING)?;
    rails::moves(emulator, bystander, 1000)?;
    let recorded = heard(emulator, &file, |emulator| rails::moves(emulator, hostile, 200))?;
    let recorded: Vec<Heard> = recorded
        .into_iter()
        .filter(|heard| !heard.control && heard.nhi == 1)
        .collect();
    let mut taken = 0;
    for _ in 0..FRAMES {
        let frame = recorded.get(random.index(recorded.len())).context("none")?;
        let mut bytes = frame.bytes.clone();
        wild(&mut bytes, &mut random);
        let request = format!("inject frame 1 {RING} {PDFS} {}", hex(&bytes));
        taken += usize::from(emulator.ask(&request).is_ok());
    }
    rails::moves(emulator, bystander, 1000)?;
    bystanders.end().context("the link nobody has attacked")?;
    drop(load);
    let from = rdma::ends(lab);
    lab.control(&format!("unplug {hostile}"))?;
    let pair = [2 * hostile, 1];
    for guest in pair {
        lab.guest(guest)?.console.wait(rdma::DOWN, from[guest], SETTLE)?;
    }
    lab.control(&format!("plug {hostile}"))?;
    for guest in pair {
        let console = &lab.guest(guest)?.console;
        let down = console.wait(rdma::DOWN, from[guest], SETTLE)?;
        console.wait(rdma::UP, down, SETTLE)?;
    }
    let answered = rdma::ping(lab.guest(pair[0])?, lab.guest(1)?, 20)?;
    seen(format!(
        "{taken} wild frames of a session with guest {}; the other link has not noticed; replugged, {answered}",
        pair[0]
    ))
}

/// Makes a frame of another packet number, with its chunks' offsets, lengths, addresses and keys at random, and its
/// checksum right (docs/spec/wire.md, sections 2 and 3).
fn wild(frame: &mut [u8], random: &mut Random) {
    const CHUNK_TYPE_AND_LENGTH: usize = 4;
    let head = head_of(frame);
    if head < HEADER {
        return;
    }
    let packet = random.next() >> random.below(64);
    if let Some(place) = frame.get_mut(16..24) {
        place.copy_from_slice(&packet.to_le_bytes());
    }
    for byte in frame.iter_mut().take(head).skip(HEADER + CHUNK_TYPE_AND_LENGTH) {
        if random.below(3) == 0 {
            *byte = random.byte();
        }
    }
    seal(frame);
}

/// Bytes of a frame's own header, before those of its chunks.
const HEADER: usize = 40;

/// Bytes of all its headers.
fn head_of(frame: &[u8]) -> usize {
    let length = frame.get(2..4).and_then(|bytes| bytes.try_into().ok());
    usize::from(length.map_or(0, u16::from_le_bytes)).min(frame.len())
}

/// Makes the checksum of a frame's headers right.
fn seal(frame: &mut [u8]) {
    let head = head_of(frame);
    if let Some(place) = frame.get_mut(4..8) {
        place.fill(0);
    }
    let chunks = frame.get(HEADER..head).unwrap_or_default();
    let crc = crc32c::crc32c(chunks);
    let crc = crc32c::crc32c_append(crc, frame.get(..HEADER).unwrap_or_default());
    if let Some(place) = frame.get_mut(4..8) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_wire::ControlBody;

    fn offer() -> Control {
        Control {
            kind: ControlKind::Offer,
            body: ControlBody {
                ver_min: 1,
                ver_max: 1,
                node_id: NodeId(7),
                tag: 1,
                nonce: 2,
                ring_size: 1024,
                ..ControlBody::default()
            },
        }
    }

    #[test]
    fn a_message_is_found_in_its_packet_and_put_into_another() {
        let bytes = offer().emit(crc32c::crc32c_append);
        let mut on_the_cable = vec![0; BEFORE_MESSAGE];
        on_the_cable.extend(turned(&bytes));
        on_the_cable.extend([0; CRC]);
        assert_eq!(message(&on_the_cable), Some(offer()));
        assert_eq!(packet(&on_the_cable, &bytes), hex(&on_the_cable[..160]));
        assert_eq!(message(&on_the_cable[..100]), None);
    }

    #[test]
    fn forged_messages_are_good_but_for_the_last_two() {
        let all = forgeries(&offer(), &mut Random::new(1));
        let good = |bytes: &Vec<u8>| Control::parse(bytes, crc32c::crc32c_append).is_ok();
        let (good_ones, bad) = all.split_at(all.len() - 2);
        assert!(good_ones.iter().all(good) && !bad.iter().any(good));
    }

    #[test]
    fn a_wild_frame_has_a_good_checksum() {
        let mut frame = vec![0; 100];
        frame[0] = 1;
        frame[2] = 56;
        wild(&mut frame, &mut Random::new(1));
        let told = u32::from_le_bytes(frame[4..8].try_into().unwrap());
        frame[4..8].fill(0);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&frame[40..56]), &frame[..40]);
        assert_eq!(told, crc);
    }
}
