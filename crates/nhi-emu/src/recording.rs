//! The capture that is running.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use usb4_nhi_control::capture::Writer;
use usb4_nhi_model::{Event, Nanos, Place, Topology};

/// Records events into a file until it is dropped or the file cannot be written.
#[derive(Debug)]
pub(crate) struct Recording {
    writer: Writer<BufWriter<File>>,
    /// Not only what crosses cables.
    all: bool,
    /// Why recording ended early.
    failed: Option<io::Error>,
}

impl Recording {
    /// Begins a file, in place of what it held. A pipe is never waited for: all guests would stand still meanwhile.
    pub(crate) fn start(path: &Path, all: bool, topology: &Topology) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))?;
        let file = BufWriter::new(File::from(file));
        let mut writer = Writer::new(file, topology.nhis(), topology.cables.len())?;
        writer.flush()?;
        Ok(Self {
            writer,
            all,
            failed: None,
        })
    }

    /// Records what happened, if it is to be.
    pub(crate) fn observe(&mut self, now: Nanos, event: &Event<'_>) {
        if self.failed.is_some() || !(self.all || crosses(event)) {
            return;
        }
        if let Err(error) = self.writer.record(now, event) {
            tracing::warn!("the capture ends early: {error}");
            self.failed = Some(error);
        }
    }

    /// Ends it; an error if something is missing.
    pub(crate) fn stop(mut self) -> io::Result<()> {
        let failed = self.failed.take();
        let flushed = self.writer.flush();
        failed.map_or(flushed, Err)
    }
}

/// Whether it happened on a cable.
fn crosses(event: &Event<'_>) -> bool {
    match event {
        Event::Control { at, .. } | Event::Frame { at, .. } => matches!(at, Place::Cable { .. }),
        Event::Link { .. } => true,
        Event::Interrupt { .. } | Event::Note { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_nhi_control::capture::Reader;
    use usb4_nhi_model::{Cable, LinkState, Nhi};

    #[test]
    fn only_what_crosses_a_cable_unless_all_is_wanted() {
        let path = std::env::temp_dir().join(format!("usb4-recording-{}", std::process::id()));
        let link = Event::Link {
            cable: Cable(0),
            state: LinkState::Training,
        };
        let note = Event::Note {
            nhi: Nhi(0),
            text: "a note",
        };
        for (all, expected) in [(false, 1), (true, 2)] {
            let mut recording = Recording::start(&path, all, &Topology::pair()).unwrap();
            recording.observe(1, &link);
            recording.observe(2, &note);
            recording.stop().unwrap();
            let records = Reader::new(File::open(&path).unwrap()).unwrap();
            assert_eq!(records.map(Result::unwrap).count(), expected);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("usb4-recording-pipe-{}", std::process::id()));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let started = Recording::start(&path, true, &Topology::pair());
        std::fs::remove_file(&path).unwrap();
        let error = started.unwrap_err().raw_os_error();
        assert_eq!(error, Some(rustix::io::Errno::NXIO.raw_os_error()));
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_is_told_at_the_end() {
        let Ok(mut recording) = Recording::start(Path::new("/dev/full"), true, &Topology::pair()) else {
            return; // told at once
        };
        for now in 0..10_000 {
            recording.observe(
                now,
                &Event::Note {
                    nhi: Nhi(0),
                    text: "fill it",
                },
            );
        }
        assert!(recording.stop().is_err());
    }
}
