//! The emulator's counters as tables.

use std::fmt::Write;

use anyhow::Result;
use serde_json::Value;

use crate::output::line;

/// Prints what an answer has of counters; nothing if it has none.
pub(super) fn print(stats: &Value) -> Result<()> {
    let text = text(stats);
    if text.is_empty() {
        return Ok(());
    }
    line(text.trim_end())
}

fn text(stats: &Value) -> String {
    let mut text = String::new();
    for nhi in list(&stats["nhis"]) {
        let guest = if nhi["connected"] == Value::Bool(true) {
            "guest attached"
        } else {
            "no guest"
        };
        // Writing to a string does not fail.
        let _ = writeln!(text, "nhi{}  host {}, {guest}", nhi["nhi"], nhi["host"]);
        counters(&mut text, &nhi["counters"]);
    }
    for cable in list(&stats["cables"]) {
        let [first, second] = [0, 1].map(|end| cable["ends"][end].as_str().unwrap_or("?"));
        let plugged = if cable["plugged"] == Value::Bool(true) {
            "plugged"
        } else {
            "unplugged"
        };
        let link = cable["link"].as_str().unwrap_or("?");
        let lanes = match cable["lanes"].as_u64() {
            Some(lanes) if lanes > 0 => format!(", lanes: {lanes}"),
            _ => String::new(),
        };
        let _ = writeln!(
            text,
            "cable {}  {first} - {second}, {plugged}, link {link}{lanes}",
            cable["cable"]
        );
        for (way, from, to) in [("forth", first, second), ("back", second, first)] {
            if has_counts(&cable[way]) {
                let _ = writeln!(text, "  {from} > {to}");
                counters(&mut text, &cable[way]);
            }
        }
    }
    text
}

/// One line per counter that is not 0.
fn counters(text: &mut String, counters: &Value) {
    for (name, value) in counters.as_object().into_iter().flatten() {
        let value = value.as_u64().unwrap_or(0);
        if value > 0 {
            let _ = writeln!(text, "    {:<20} {value:>14}", name.replace('_', " "));
        }
    }
}

fn has_counts(counters: &Value) -> bool {
    let mut values = counters.as_object().into_iter().flat_map(|map| map.values());
    values.any(|value| value.as_u64() != Some(0))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_has_happened_is_shown() {
        let stats = json!({
            "nhis": [{"nhi": 0, "host": 0, "connected": true, "counters": {"tx_frames": 12, "held": 0}}],
            "cables": [{"cable": 0, "ends": ["0.0", "1.0"], "plugged": true, "link": "up", "lanes": 2,
                        "forth": {"frames": 0}, "back": {"frames": 3}}],
        });
        assert_eq!(
            text(&stats),
            "nhi0  host 0, guest attached\n    tx frames                        12\n\
             cable 0  0.0 - 1.0, plugged, link up, lanes: 2\n  1.0 > 0.0\n    frames                            3\n"
        );
        assert_eq!(text(&Value::Null), "");
    }
}
