//! `usb4ctl lab decode`.

use std::fmt::Write;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::json;
use usb4_nhi_control::capture::{Fate, Reader, Record};

use crate::output::line;

/// Prints a capture in words.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// File of `usb4ctl lab capture start`
    file: PathBuf,
    /// Prints the bytes, too
    #[arg(long)]
    hex: bool,
}

pub(super) fn run(arguments: &Arguments, json: bool) -> Result<()> {
    let name = arguments.file.display();
    let file = File::open(&arguments.file).with_context(|| format!("cannot open {name}"))?;
    let reader = Reader::new(BufReader::new(file)).with_context(|| name.to_string())?;
    for record in reader {
        let record = record.with_context(|| name.to_string())?;
        if json {
            line(as_json(&record, arguments.hex))?;
        } else {
            line(&record)?;
            if arguments.hex && !record.bytes.is_empty() {
                line(dump(&record.bytes).trim_end())?;
            }
        }
    }
    Ok(())
}

fn as_json(record: &Record, hex: bool) -> serde_json::Value {
    let mut value = json!({
        "time_ns": record.time,
        "place": record.place(),
        "kind": record.name(),
        "text": record.text(),
        "fate": record.fate.to_string(),
        "passed": !matches!(record.fate, Fate::Dropped(_)),
    });
    if hex {
        let digits: String = record.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        value["bytes"] = digits.into();
    }
    value
}

/// Sixteen bytes a line.
fn dump(bytes: &[u8]) -> String {
    const LINE: usize = 16;
    let mut text = String::new();
    for (row, line) in bytes.chunks(LINE).enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "      {:04x} ", row.saturating_mul(LINE));
        for byte in line {
            let _ = write!(text, " {byte:02x}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_printed_in_rows_of_sixteen() {
        let bytes: Vec<u8> = (0..18).collect();
        assert_eq!(
            dump(&bytes),
            "      0000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f\n      0010  10 11\n"
        );
    }
}
