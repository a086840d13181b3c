//! Where a plugin's log lines go: the host library's logger, set once.

use std::fmt;
use std::sync::OnceLock;

/// How grave a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something failed and will stay failed.
    Error,
    /// Something is not as it should be.
    Warn,
    /// What a user who asks wants to know.
    Info,
    /// What a developer who asks wants to know.
    Debug,
}

/// The host's logger.
pub trait Sink: Send + Sync {
    /// Whether a line of this level would be seen.
    fn enabled(&self, level: Level) -> bool;
    /// Takes one line, without a newline at its end.
    fn line(&self, level: Level, line: &str);
}

static SINK: OnceLock<Box<dyn Sink>> = OnceLock::new();

/// Sets the sink; the first call counts. Until then lines are dropped.
pub fn set_sink(sink: Box<dyn Sink>) {
    let _ = SINK.set(sink);
}

/// Whether a sink has been set.
pub(crate) fn has_sink() -> bool {
    SINK.get().is_some()
}

/// Whether a line of this level would be seen.
pub fn enabled(level: Level) -> bool {
    SINK.get().is_some_and(|sink| sink.enabled(level))
}

/// Logs one line: `log(Level::Warn, format_args!("..."))`.
pub fn log(level: Level, line: fmt::Arguments<'_>) {
    if let Some(sink) = SINK.get().filter(|sink| sink.enabled(level)) {
        sink.line(level, &line.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Sink for Lines {
        fn enabled(&self, level: Level) -> bool {
            level <= Level::Info
        }
        fn line(&self, _: Level, line: &str) {
            self.0.lock().unwrap().push(line.to_owned());
        }
    }

    #[test]
    fn lines_reach_the_sink_if_their_level_is_on() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        log(Level::Error, format_args!("nobody listens yet"));
        set_sink(Box::new(Lines(lines.clone())));
        log(Level::Info, format_args!("one {}", 1));
        log(Level::Debug, format_args!("too fine"));
        assert!(enabled(Level::Warn) && !enabled(Level::Debug));
        assert_eq!(*lines.lock().unwrap(), ["one 1"]);
    }
}
