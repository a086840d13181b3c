//! Writing a capture.

use std::io::{self, Write};

use usb4_nhi_model::{Event, Nanos, Place};

use super::{block, record};

/// Writes records as they happen.
#[derive(Debug)]
pub struct Writer<W: Write> {
    out: W,
    /// Cables are interfaces from this number on, controllers those before.
    nhis: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a file: a section, and an interface for each of so many controllers and cables.
    pub fn new(mut out: W, nhis: usize, cables: usize) -> io::Result<Self> {
        let mut section = block::BYTE_ORDER.to_le_bytes().to_vec();
        section.extend_from_slice(&[1, 0, 0, 0]); // version 1.0
        section.extend_from_slice(&[0xff; 8]); // of unknown length
        write_block(&mut out, block::SECTION, &[&section])?;
        let names = (0..nhis).map(|nhi| format!("nhi{nhi}"));
        for name in names.chain((0..cables).map(|cable| format!("cable{cable}"))) {
            let mut body = block::USER0.to_le_bytes().to_vec();
            body.extend_from_slice(&[0; 6]); // reserved, and no limit of a packet's length
            option(&mut body, block::OPTION_NAME, name.as_bytes());
            option(&mut body, block::OPTION_RESOLUTION, &[block::NANOSECONDS]);
            option(&mut body, block::OPTION_END, &[]);
            write_block(&mut out, block::INTERFACE, &[&body])?;
        }
        let nhis = u32::try_from(nhis).map_err(io::Error::other)?;
        Ok(Self { out, nhis })
    }

    /// Adds what happened.
    pub fn record(&mut self, time: Nanos, event: &Event<'_>) -> io::Result<()> {
        let head = record::head(event);
        let bytes = match event {
            Event::Control { bytes, .. } | Event::Frame { bytes, .. } => bytes,
            _ => &[][..],
        };
        let length = u32::try_from(head.len().saturating_add(bytes.len())).map_err(io::Error::other)?;
        let [low, high] =
            [time & u64::from(u32::MAX), time >> 32].map(|half| u32::try_from(half).unwrap_or(0));
        let fields = [self.interface(event), high, low, length, length];
        let fields: Vec<u8> = fields.iter().flat_map(|word| word.to_le_bytes()).collect();
        write_block(&mut self.out, block::PACKET, &[&fields, &head, bytes])
    }

    /// Passes on what has been written so far.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn interface(&self, event: &Event<'_>) -> u32 {
        let cable = |cable: usize| self.nhis.saturating_add(u32::try_from(cable).unwrap_or(0));
        let nhi = |nhi: usize| u32::try_from(nhi).unwrap_or(0);
        match event {
            Event::Control { at, .. } | Event::Frame { at, .. } => match at {
                Place::FromHost(from) => nhi(from.0),
                Place::ToHost(to) => nhi(to.0),
                Place::Cable { cable: on, .. } => cable(on.0),
            },
            Event::Link { cable: of, .. } => cable(of.0),
            Event::Interrupt { nhi: of, .. } | Event::Note { nhi: of, .. } => nhi(of.0),
        }
    }
}

/// Type, length, the parts, padding, length.
fn write_block(out: &mut impl Write, kind: u32, parts: &[&[u8]]) -> io::Result<()> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    let padding = body.next_multiple_of(4).saturating_sub(body);
    let length = body.saturating_add(padding).saturating_add(block::FRAMING);
    let length = u32::try_from(length).map_err(io::Error::other)?.to_le_bytes();
    out.write_all(&kind.to_le_bytes())?;
    out.write_all(&length)?;
    for part in parts {
        out.write_all(part)?;
    }
    out.write_all([0; 3].get(..padding).unwrap_or_default())?;
    out.write_all(&length)
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&u16::try_from(value.len()).unwrap_or(0).to_le_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}
