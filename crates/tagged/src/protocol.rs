//! Which way a message goes.

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
    /// Copied to a buffer of eager size, from where the receiver reads it.
    Copied,
}

/// Which way messages go, by what fits where.
pub(crate) struct Table {
    /// Longest message sent without asking.
    eager: u64,
    /// Longest message in staging memory.
    stage: u64,
}

impl Table {
    /// `eager_max`: longest message sent without asking.
    pub(crate) fn new(eager_max: u64) -> Self {
        Self {
            eager: eager_max,
            stage: (STAGE_LEN as u64).min(eager_max),
        }
    }

    /// Longest message in one segment that is sent without asking.
    #[inline]
    pub(crate) fn longest(&self, inject: bool) -> u64 {
        if inject { self.stage } else { self.eager }
    }

    /// The way of a message; `None` if it is longer than can be injected.
    #[inline]
    pub(crate) fn choose(&self, len: u64, segments: usize, inject: bool, confirm: bool) -> Option<Path> {
        if inject {
            let path = if confirm { Path::Copied } else { Path::Staged };
            return (len <= self.stage).then_some(path);
        }
        // Only a rendezvous is answered after the message is in the receiver's buffer.
        Some(if confirm || len > self.eager {
            Path::Rendezvous
        } else if segments <= 1 {
            Path::Direct
        } else if len <= self.stage {
            Path::Staged
        } else {
            Path::Packed
        })
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
        assert_eq!(table.choose(8, 1, true, true), Some(Path::Copied));
        assert_eq!(table.choose(257, 1, true, true), None);
    }
}
