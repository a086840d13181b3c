//! The model together with what is outside it: what a client can do to its controller.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use usb4_nhi_model::{BAR0_SIZE, BAR2_SIZE, CONFIG_SIZE, Fabric, Nanos, Nhi, VECTORS};

use crate::board::Board;
use crate::pages::Pages;
use crate::protocol::region;

/// Bytes of a register.
const WORD: u64 = 4;

/// A fabric and its surroundings.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) fabric: Fabric,
    pub(crate) board: Board,
    /// Of each controller; empty ones with trapped doorbells.
    pages: Vec<Pages>,
    /// The time all calls of one turn of the loop are made at.
    now: Nanos,
}

impl Machine {
    pub(crate) fn new(fabric: Fabric, pages: Vec<Pages>) -> Self {
        let board = Board::new(fabric.topology().nhis());
        let now = board.now();
        Self {
            fabric,
            board,
            pages,
            now,
        }
    }

    /// Looks at the clock. A look costs as much as half a register write, so it is not taken for each.
    pub(crate) fn look_at_clock(&mut self) {
        self.now = self.board.now();
    }

    /// When the clock was last looked at.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// The pages of a controller that its guest may map.
    pub(crate) fn pages(&self, nhi: Nhi) -> Option<&Pages> {
        self.pages.get(nhi.0)
    }

    /// A guest is there.
    pub(crate) fn connect(&mut self, nhi: Nhi) {
        let now = self.now;
        self.clear_pages(nhi);
        self.fabric.connected(nhi, now, &mut self.board);
    }

    /// The guest is gone, and with it its memory and its vectors.
    pub(crate) fn disconnect(&mut self, nhi: Nhi) {
        if let Some(guest) = self.board.guest(nhi) {
            *guest = Default::default();
        }
        let now = self.now;
        for vector in 0..vectors() {
            self.fabric.set_vector(nhi, vector, false, now, &mut self.board);
        }
        self.clear_pages(nhi);
        self.fabric.disconnected(nhi, now, &mut self.board);
    }

    /// Function reset.
    pub(crate) fn reset(&mut self, nhi: Nhi) {
        let now = self.now;
        self.clear_pages(nhi);
        self.fabric.reset(nhi, now, &mut self.board);
    }

    /// Reads a region.
    pub(crate) fn read(&mut self, nhi: Nhi, index: u32, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        within(index, offset, buf.len())?;
        match index {
            region::CONFIG => self.fabric.config_read(nhi, offset_in(offset)?, buf),
            _ => {
                self.catch_up(nhi, index);
                for (at, part) in words(offset, buf.len()) {
                    let value = self.read_word(nhi, index, at & !(WORD - 1)).to_le_bytes();
                    let from = usize::try_from(at % WORD).unwrap_or_default();
                    let value = value.get(from..).unwrap_or_default();
                    if let Some(part) = buf.get_mut(part) {
                        part.iter_mut().zip(value).for_each(|(to, from)| *to = *from);
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes a region. What is no whole register has no effect.
    pub(crate) fn write(&mut self, nhi: Nhi, index: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        within(index, offset, data.len())?;
        if index == region::CONFIG {
            let now = self.now;
            self.fabric
                .config_write(nhi, offset_in(offset)?, data, now, &mut self.board);
            return Ok(());
        }
        self.catch_up(nhi, index);
        for (at, part) in words(offset, data.len()) {
            let word = data.get(part).and_then(|part| <[u8; 4]>::try_from(part).ok());
            if let Some(word) = word {
                self.write_word(nhi, index, at, u32::from_le_bytes(word));
            }
        }
        Ok(())
    }

    fn read_word(&mut self, nhi: Nhi, index: u32, offset: u64) -> u32 {
        if index == region::BAR2 {
            return self.fabric.bar2_read(nhi, offset);
        }
        let mapped = self.pages.get(nhi.0).filter(|pages| pages.holds(offset));
        match mapped {
            Some(pages) => pages.word(offset),
            None => {
                let now = self.now;
                self.fabric.bar0_read(nhi, offset, now, &mut self.board)
            }
        }
    }

    fn write_word(&mut self, nhi: Nhi, index: u32, offset: u64, value: u32) {
        if index == region::BAR2 {
            self.fabric.bar2_write(nhi, offset, value);
            return;
        }
        if let Some(pages) = self.pages.get(nhi.0).filter(|pages| pages.holds(offset)) {
            // The client writes for its guest where it could not give it the page.
            pages.set(offset, value);
            self.poll(nhi);
            return;
        }
        let now = self.now;
        self.fabric.bar0_write(nhi, offset, value, now, &mut self.board);
    }

    /// Tells the model what the guest wrote to mapped registers before it came to trapped ones.
    fn catch_up(&mut self, nhi: Nhi, index: u32) {
        if index == region::BAR0 {
            self.poll(nhi);
        }
    }

    /// Tells the model what the guest has written to mapped registers; true if there was something.
    pub(crate) fn poll(&mut self, nhi: Nhi) -> bool {
        let now = self.now;
        let Some(pages) = self.pages.get(nhi.0) else {
            return false;
        };
        let mut any = false;
        for page in pages.which() {
            let word = &mut |offset| pages.word(offset);
            any |= self.fabric.poll(nhi, page, word, now, &mut self.board);
        }
        any
    }

    /// Signals vectors `start` and following by `fds`, or not at all where there is none.
    pub(crate) fn set_vectors(
        &mut self,
        nhi: Nhi,
        start: u32,
        fds: impl Iterator<Item = Option<OwnedFd>>,
    ) -> Result<(), Errno> {
        let start = u16::try_from(start).map_err(|_| Errno::INVAL)?;
        let now = self.now;
        for (vector, fd) in (start..=u16::MAX).zip(fds) {
            let guest = self.board.guest(nhi).ok_or(Errno::NODEV)?;
            let open = fd.is_some();
            guest.set_vector(vector, fd)?;
            self.fabric.set_vector(nhi, vector, open, now, &mut self.board);
        }
        Ok(())
    }

    fn clear_pages(&self, nhi: Nhi) {
        if let Some(pages) = self.pages.get(nhi.0) {
            pages.clear();
        }
    }

    /// Does what is due, a bounded amount of it.
    pub(crate) fn advance(&mut self) {
        let now = self.now;
        if self.fabric.deadline().is_some_and(|deadline| deadline <= now) {
            self.fabric.advance(now, &mut self.board);
        }
    }
}

/// Bytes of a region, 0 if there is no such region.
pub(crate) fn region_size(index: u32) -> u64 {
    match index {
        region::BAR0 => BAR0_SIZE,
        region::BAR2 => BAR2_SIZE,
        region::CONFIG => CONFIG_SIZE as u64,
        _ => 0,
    }
}

/// MSI-X vectors of a controller.
pub(crate) fn vectors() -> u16 {
    u16::try_from(VECTORS).unwrap_or(u16::MAX)
}

fn within(index: u32, offset: u64, count: usize) -> Result<(), Errno> {
    let end = offset.checked_add(count as u64).ok_or(Errno::INVAL)?;
    if end > region_size(index) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn offset_in(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::INVAL)
}

/// The parts of `count` bytes at `offset` that lie in one register each: where it begins, and which bytes it is.
fn words(offset: u64, count: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0usize;
    std::iter::from_fn(move || {
        let at = offset.saturating_add(done as u64);
        let left = usize::try_from(WORD - at % WORD).unwrap_or(1);
        let part = done..count.min(done.saturating_add(left));
        done = part.end;
        (!part.is_empty()).then_some((at, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_cut_at_registers() {
        let parts: Vec<_> = words(6, 7).collect();
        assert_eq!(parts, [(6, 0..2), (8, 2..6), (12, 6..7)]);
        assert_eq!(words(8, 0).count(), 0);
        assert_eq!(words(0, 8).collect::<Vec<_>>(), [(0, 0..4), (4, 4..8)]);
    }

    #[test]
    fn nothing_past_the_end_of_a_region() {
        assert_eq!(within(region::CONFIG, 0, 256), Ok(()));
        assert_eq!(within(region::CONFIG, 1, 256), Err(Errno::INVAL));
        assert_eq!(within(region::BAR0, u64::MAX, 4), Err(Errno::INVAL));
        assert_eq!(within(1, 0, 1), Err(Errno::INVAL));
        assert_eq!(within(u32::MAX, 0, 0), Ok(()));
    }
}
