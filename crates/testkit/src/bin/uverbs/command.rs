//! Commands of `/dev/infiniband/uverbsN`, as bytes (`rdma/ib_user_verbs.h`).

use std::os::fd::AsFd;

use rustix::io::Errno;

/// `enum ib_uverbs_write_cmds`.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Number {
    GetContext = 0,
    QueryDevice = 1,
    QueryPort = 2,
    AllocPd = 3,
    DeallocPd = 4,
    CreateAh = 5,
    DestroyAh = 8,
    RegMr = 9,
    DeregMr = 13,
    AllocMw = 14,
    CreateCompChannel = 17,
    CreateCq = 18,
    DestroyCq = 20,
    ReqNotifyCq = 23,
    CreateQp = 24,
    QueryQp = 25,
    ModifyQp = 26,
    DestroyQp = 27,
    PostSend = 28,
    CreateSrq = 32,
    ModifySrq = 33,
    QuerySrq = 34,
    DestroySrq = 35,
    CreateXsrq = 39,
}

/// All of them.
pub(crate) const COMMANDS: [Number; 24] = [
    Number::GetContext,
    Number::QueryDevice,
    Number::QueryPort,
    Number::AllocPd,
    Number::DeallocPd,
    Number::CreateAh,
    Number::DestroyAh,
    Number::RegMr,
    Number::DeregMr,
    Number::AllocMw,
    Number::CreateCompChannel,
    Number::CreateCq,
    Number::DestroyCq,
    Number::ReqNotifyCq,
    Number::CreateQp,
    Number::QueryQp,
    Number::ModifyQp,
    Number::DestroyQp,
    Number::PostSend,
    Number::CreateSrq,
    Number::ModifySrq,
    Number::QuerySrq,
    Number::DestroySrq,
    Number::CreateXsrq,
];

/// Bytes of `struct ib_uverbs_cmd_hdr`.
const HEADER: usize = 8;

/// A command to be written.
pub(crate) struct Command {
    bytes: Vec<u8>,
    answer: Option<Answer>,
}

impl Command {
    /// One that is answered in `room` bytes, a multiple of four: its argument begins with where.
    pub(crate) fn with_answer(number: Number, room: usize) -> Self {
        let mut answer = Answer(vec![0; room.div_ceil(8)]);
        let at = answer.0.as_mut_ptr().expose_provenance() as u64;
        let mut command = Self::new(number, room / 4);
        command.answer = Some(answer);
        command.u64(at)
    }

    /// One without an answer.
    pub(crate) fn plain(number: Number) -> Self {
        Self::new(number, 0)
    }

    fn new(number: Number, room: usize) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend((number as u32).to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(u16::try_from(room).unwrap_or(u16::MAX).to_le_bytes());
        Self { bytes, answer: None }
    }

    pub(crate) fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    pub(crate) fn zeros(mut self, count: usize) -> Self {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    /// Writes it.
    pub(crate) fn run(mut self, fd: impl AsFd) -> Result<Answer, Errno> {
        while self.bytes.len() % 4 != 0 {
            self.bytes.push(0);
        }
        let words = u16::try_from(self.bytes.len() / 4).map_err(|_| Errno::OVERFLOW)?;
        debug_assert!(self.bytes.len() >= HEADER);
        if let Some(place) = self.bytes.get_mut(4..6) {
            place.copy_from_slice(&words.to_le_bytes());
        }
        let written = rustix::io::write(fd, &self.bytes)?;
        if written != self.bytes.len() {
            return Err(Errno::IO);
        }
        Ok(self.answer.unwrap_or(Answer(vec![])))
    }
}

/// What the kernel has answered; it is at the address it was told, so this never grows.
pub(crate) struct Answer(Vec<u64>);

impl Answer {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut found = [0; N];
        for (index, byte) in found.iter_mut().enumerate() {
            let place = at + index;
            *byte = self.0.get(place / 8).map_or(0, |word| {
                let [.., last] = (word >> (8 * (place % 8)) << 56).to_le_bytes();
                last
            });
        }
        found
    }

    pub(crate) fn u8(&self, at: usize) -> u8 {
        let [byte] = self.bytes(at);
        byte
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn i32(&self, at: usize) -> i32 {
        i32::from_le_bytes(self.bytes(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes(at))
    }
}
