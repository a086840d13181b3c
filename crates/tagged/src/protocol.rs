//! Which way a message goes.

use crate::MAX_SEGMENTS;

/// Bytes of the staging memory each send has: the longest injected message.
pub const STAGE_LEN: usize = 256;

/// How the payload of a message reaches the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Copied to the send's staging memory; the user's buffer is free at once.
    Staged,
    /// Gathered from the user's buffer.
    Direct,
    /// Copied to a buffer of eager size, because it is in several segments.
    Packed,
    /// Read by the receiver.
    Rendezvous,
}

/// One row: messages up to `len` bytes in up to `segments` segments, injected or not, go this way.
struct Rule {
    len: u64,
    segments: usize,
    inject: bool,
    path: Path,
}

/// The protocol table; the first row that fits decides.
pub(crate) struct Table {
    rules: [Rule; 5],
}

impl Table {
    /// `eager_max`: longest message sent without asking.
    pub(crate) fn new(eager_max: u64) -> Self {
        let stage = (STAGE_LEN as u64).min(eager_max);
        let row = |len, segments, inject, path| Rule {
            len,
            segments,
            inject,
            path,
        };
        Self {
            rules: [
                row(stage, MAX_SEGMENTS, true, Path::Staged),
                row(eager_max, 1, false, Path::Direct),
                row(stage, MAX_SEGMENTS, false, Path::Staged),
                row(eager_max, MAX_SEGMENTS, false, Path::Packed),
                row(u64::MAX, MAX_SEGMENTS, false, Path::Rendezvous),
            ],
        }
    }

    /// The way of a message; `None` if it is longer than can be injected, or injected and to be confirmed.
    #[inline]
    pub(crate) fn choose(&self, len: u64, segments: usize, inject: bool, confirm: bool) -> Option<Path> {
        if confirm {
            // Only a rendezvous is answered after the message is in the receiver's buffer.
            return (!inject).then_some(Path::Rendezvous);
        }
        self.rules
            .iter()
            .find(|rule| len <= rule.len && segments <= rule.segments && rule.inject == inject)
            .map(|rule| rule.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_segments_and_inject_decide() {
        let table = Table::new(16384);
        for (len, segments, inject, path) in [
            (0, 0, false, Some(Path::Direct)),
            (64, 1, false, Some(Path::Direct)),
            (16384, 1, false, Some(Path::Direct)),
            (64, 2, false, Some(Path::Staged)),
            (257, 2, false, Some(Path::Packed)),
            (16385, 1, false, Some(Path::Rendezvous)),
            (16385, 4, false, Some(Path::Rendezvous)),
            (256, 1, true, Some(Path::Staged)),
            (257, 1, true, None),
        ] {
            assert_eq!(
                table.choose(len, segments, inject, false),
                path,
                "{len} {segments} {inject}"
            );
        }
        assert_eq!(table.choose(0, 0, false, true), Some(Path::Rendezvous));
        assert_eq!(table.choose(8, 1, true, true), None);
    }
}
