//! What a message costs, by the emulator's counters.

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};

/// Per message; of both controllers together, but for frames.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Counts {
    /// From guest 0.
    pub(super) frames_there: f64,
    /// To guest 0.
    pub(super) frames_back: f64,
    pub(super) bytes: f64,
    pub(super) doorbells: f64,
    pub(super) interrupts: f64,
    pub(super) reads: f64,
    pub(super) writes: f64,
}

impl Counts {
    pub(super) fn frames(&self) -> f64 {
        self.frames_there + self.frames_back
    }
}

/// Shares what the emulator has counted out among `messages`.
pub(super) fn per_message(stats: &Value, messages: u32) -> Result<Counts> {
    let controllers = stats.pointer("/stats/nhis").and_then(Value::as_array);
    let counters = controllers.into_iter().flatten();
    let counters: Vec<&Map<String, Value>> = counters
        .filter_map(|nhi| nhi.get("counters")?.as_object())
        .collect();
    let [here, there] = counters[..] else {
        bail!("the emulator's counters are not what they were: {stats}");
    };
    let of = |controller: &Map<String, Value>, name: &str| -> Result<f64> {
        let count = controller.get(name).and_then(Value::as_u64);
        let count = count.with_context(|| format!("the emulator does not count {name}"))?;
        Ok(count as f64 / f64::from(messages))
    };
    let both = |name: &str| Ok::<f64, anyhow::Error>(of(here, name)? + of(there, name)?);
    Ok(Counts {
        frames_there: of(here, "tx_frames")?,
        frames_back: of(there, "tx_frames")?,
        bytes: both("tx_bytes")?,
        doorbells: both("tx_doorbells")? + both("rx_doorbells")?,
        interrupts: both("interrupts")?,
        reads: both("reads")?,
        writes: both("writes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_both_controllers_are_shared_out_among_messages() {
        let nhi = |frames: u64| {
            serde_json::json!({"counters": {"tx_frames": frames, "tx_bytes": 2240, "tx_doorbells": 10, "rx_doorbells": 10,
                "interrupts": 20, "reads": 0, "writes": 40}})
        };
        let stats = serde_json::json!({"ok": true, "stats": {"nhis": [nhi(10), nhi(30)], "cables": []}});
        let counts = per_message(&stats, 20).unwrap();
        assert_eq!((counts.frames_there, counts.frames_back), (0.5, 1.5));
        assert_eq!(
            (counts.frames(), counts.bytes, counts.doorbells),
            (2.0, 224.0, 2.0)
        );
        assert_eq!((counts.interrupts, counts.reads, counts.writes), (2.0, 0.0, 4.0));
        assert!(per_message(&serde_json::json!({"ok": true}), 1).is_err());
    }
}
