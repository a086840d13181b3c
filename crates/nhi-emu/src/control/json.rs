//! Counters as JSON.

use serde_json::{Map, Value, json};
use usb4_nhi_model::{CableStats, LinkState, NhiStats, Stats};

/// All counters.
pub(super) fn stats(stats: &Stats) -> Value {
    let nhis: Vec<_> = stats.nhis.iter().map(nhi).collect();
    let cables: Vec<_> = stats.cables.iter().map(cable).collect();
    json!({"nhis": nhis, "cables": cables})
}

fn nhi(stats: &NhiStats) -> Value {
    json!({
        "nhi": stats.nhi.0,
        "host": stats.host,
        "connected": stats.connected,
        "counters": counters(stats.counters.fields()),
    })
}

fn cable(stats: &CableStats) -> Value {
    let (link, lanes) = match stats.link {
        LinkState::Down => ("down", 0),
        LinkState::Training => ("training", 0),
        LinkState::Recovery => ("recovery", 0),
        LinkState::Up { lanes } => ("up", lanes),
    };
    let [forth, back] = stats.counters.map(|way| counters(way.fields()));
    json!({
        "cable": stats.cable.0,
        "ends": stats.ends.map(|end| end.to_string()),
        "plugged": stats.plugged,
        "link": link,
        "lanes": lanes,
        "forth": forth,
        "back": back,
    })
}

fn counters(fields: impl Iterator<Item = (&'static str, u64)>) -> Value {
    let map: Map<_, _> = fields
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    Value::Object(map)
}
