//! Committed text: a measurement that changes is a difference in review.

use std::fmt::Write;
use std::path::PathBuf;

/// Compares `text` with the committed file `snapshots/NAME.txt`; with `UPDATE_SNAPSHOTS=1` writes it instead.
///
/// # Errors
/// The lines that differ, and how to accept them.
pub fn check(name: &str, text: &str) -> Result<(), String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("snapshots")
        .join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        return std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()));
    }
    let committed = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    if committed == text {
        return Ok(());
    }
    let mut message = format!("{} has changed; UPDATE_SNAPSHOTS=1 accepts it:\n", path.display());
    let (old, new): (Vec<_>, Vec<_>) = (committed.lines().collect(), text.lines().collect());
    for line in 0..old.len().max(new.len()) {
        let (was, is) = (old.get(line), new.get(line));
        if was != is {
            let _ = writeln!(message, "-{}\n+{}", was.unwrap_or(&""), is.unwrap_or(&""));
        }
    }
    Err(message)
}
