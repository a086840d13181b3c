//! One record.

use usb4_nhi_model::{Cable, Event, LinkState, Nanos, Nhi, Place, Port};

/// Bytes before the text.
pub(super) const HEADER: usize = 16;
const FORMAT: u8 = 1;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Since the emulator started.
    pub time: Nanos,
    /// What it was.
    pub kind: Kind,
    /// What became of it.
    pub fate: Fate,
    /// The control packet with its CRC, or the frame's payload.
    pub bytes: Vec<u8>,
}

/// What a record is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A control packet.
    Control {
        /// Where.
        at: Place,
        /// Packet type.
        pdf: u8,
    },
    /// A data frame.
    Frame {
        /// Where.
        at: Place,
        /// Its ring, or the HopID on a cable.
        hop: u16,
        /// PDF of its first packet.
        sof: u8,
        /// PDF of its last packet.
        eof: u8,
    },
    /// A cable's link changed.
    Link {
        /// The cable.
        cable: Cable,
        /// Its new state.
        state: LinkState,
    },
    /// An interrupt was sent.
    Interrupt {
        /// The controller.
        nhi: Nhi,
        /// Its vector.
        vector: u16,
    },
    /// Something rare.
    Note {
        /// The controller.
        nhi: Nhi,
        /// A sentence.
        text: String,
    },
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It went on.
    Passed,
    /// It went on with a bit changed.
    Corrupted,
    /// It went on with a bit changed that no hardware check sees.
    CorruptedSilently,
    /// It went on, twice.
    Duplicated,
    /// It ended here, for this reason.
    Dropped(String),
}

/// The bytes of a record's header and text; what crossed goes behind them.
pub(super) fn head(event: &Event<'_>) -> Vec<u8> {
    use usb4_nhi_model::Fate as F;
    let mut head = Head::default();
    let mut text = "";
    let fate = match *event {
        Event::Control { at, pdf, fate, .. } => {
            head.kind = 1;
            head.place(at);
            head.first = pdf;
            fate
        }
        Event::Frame {
            at,
            hop,
            sof,
            eof,
            fate,
            ..
        } => {
            head.kind = 2;
            head.place(at);
            (head.first, head.second) = (sof, eof);
            head.number = u16::try_from(hop).unwrap_or(u16::MAX);
            fate
        }
        Event::Link { cable, state } => {
            head.kind = 3;
            head.cable = u16::try_from(cable.0).unwrap_or(u16::MAX);
            (head.first, head.second) = match state {
                LinkState::Down => (0, 0),
                LinkState::Training => (1, 0),
                LinkState::Recovery => (2, 0),
                LinkState::Up { lanes } => (3, lanes),
            };
            F::Passed
        }
        Event::Interrupt { nhi, vector, lost } => {
            head.kind = 4;
            head.from = [small(nhi.0), 0];
            head.number = vector;
            if lost { F::Dropped("fault") } else { F::Passed }
        }
        Event::Note { nhi, text: note } => {
            head.kind = 5;
            head.from = [small(nhi.0), 0];
            text = note;
            F::Passed
        }
    };
    head.fate = match fate {
        F::Passed => 0,
        F::Corrupted => 1,
        F::CorruptedSilently => 2,
        F::Duplicated => 3,
        F::Dropped(why) => {
            text = why;
            4
        }
    };
    head.bytes(text)
}

impl Record {
    /// Reads a packet's data; None if it is not one of ours.
    pub(super) fn parse(time: Nanos, data: &[u8]) -> Option<Self> {
        let (head, rest) = Head::parse(data)?;
        let (text, bytes) = rest.split_at_checked(usize::from(head.text))?;
        let text = String::from_utf8(text.to_vec()).ok()?;
        let nhi = Nhi(usize::from(head.from[0]));
        let kind = match head.kind {
            1 => Kind::Control {
                at: head.at()?,
                pdf: head.first,
            },
            2 => Kind::Frame {
                at: head.at()?,
                hop: head.number,
                sof: head.first,
                eof: head.second,
            },
            3 => Kind::Link {
                cable: Cable(usize::from(head.cable)),
                state: match head.first {
                    0 => LinkState::Down,
                    1 => LinkState::Training,
                    2 => LinkState::Recovery,
                    3 => LinkState::Up { lanes: head.second },
                    _ => return None,
                },
            },
            4 => Kind::Interrupt {
                nhi,
                vector: head.number,
            },
            5 => Kind::Note {
                nhi,
                text: text.clone(),
            },
            _ => return None,
        };
        let fate = match head.fate {
            0 => Fate::Passed,
            1 => Fate::Corrupted,
            2 => Fate::CorruptedSilently,
            3 => Fate::Duplicated,
            4 => Fate::Dropped(text),
            _ => return None,
        };
        Some(Self {
            time,
            kind,
            fate,
            bytes: bytes.to_vec(),
        })
    }
}

/// The header's fields.
#[derive(Default)]
struct Head {
    kind: u8,
    place: u8,
    fate: u8,
    from: [u8; 2],
    to: [u8; 2],
    first: u8,
    second: u8,
    number: u16,
    cable: u16,
    text: u16,
}

impl Head {
    fn place(&mut self, at: Place) {
        match at {
            Place::FromHost(nhi) => (self.place, self.from) = (1, [small(nhi.0), 0]),
            Place::ToHost(nhi) => (self.place, self.from) = (2, [small(nhi.0), 0]),
            Place::Cable { cable, from, to } => {
                self.place = 3;
                self.from = [from.nhi.0, from.port].map(small);
                self.to = [to.nhi.0, to.port].map(small);
                self.cable = u16::try_from(cable.0).unwrap_or(u16::MAX);
            }
        }
    }

    fn at(&self) -> Option<Place> {
        let port = |[nhi, port]: [u8; 2]| Port {
            nhi: Nhi(usize::from(nhi)),
            port: usize::from(port),
        };
        Some(match self.place {
            1 => Place::FromHost(port(self.from).nhi),
            2 => Place::ToHost(port(self.from).nhi),
            3 => Place::Cable {
                cable: Cable(usize::from(self.cable)),
                from: port(self.from),
                to: port(self.to),
            },
            _ => return None,
        })
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        let [from, from_port] = self.from;
        let [to, to_port] = self.to;
        let fields = [
            FORMAT,
            self.kind,
            self.place,
            self.fate,
            from,
            from_port,
            to,
            to_port,
            self.first,
            self.second,
        ];
        let mut bytes = fields.to_vec();
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(&self.cable.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(text.len()).unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    fn parse(data: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = data.split_first_chunk::<HEADER>()?;
        let [
            format,
            kind,
            place,
            fate,
            f0,
            f1,
            t0,
            t1,
            first,
            second,
            n0,
            n1,
            c0,
            c1,
            x0,
            x1,
        ] = *head;
        let head = Self {
            kind,
            place,
            fate,
            from: [f0, f1],
            to: [t0, t1],
            first,
            second,
            number: u16::from_le_bytes([n0, n1]),
            cable: u16::from_le_bytes([c0, c1]),
            text: u16::from_le_bytes([x0, x1]),
        };
        (format == FORMAT).then_some((head, rest))
    }
}

/// Controllers and ports are at most 16 and 4.
fn small(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}
