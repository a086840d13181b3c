//! `kmod/usb4_core.h` and `crates/kobj` describe one border: every function and constant on one side has its like on
//! the other. Layouts of structures are asserted by both compilers.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Parameters and result, in words that both sides translate to.
type Signature = (Vec<String>, String);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().into()
}

fn header() -> String {
    let text = fs::read_to_string(root().join("kmod/usb4_core.h")).unwrap();
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").unwrap().1;
    }
    plain.push_str(rest);
    plain
}

fn sources() -> String {
    let folder = root().join("crates/kobj/src");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| fs::read_to_string(path).unwrap()).collect()
}

/// Splits at commas.
fn list(text: &str) -> Vec<String> {
    let parts = text
        .split(',')
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    parts.filter(|part| !part.is_empty()).collect()
}

/// `const struct usb4_core_peer *peer`: `&peer`; `u32 *cq`: `&mut u32`; `u32 ep`: `u32`.
fn c_type(text: &str) -> String {
    let constant = text.contains("const ");
    let pointer = text.contains('*');
    let text = text.replace("const ", "").replace("struct ", "");
    let name = text.split(['*', ' ']).next().unwrap();
    let name = match name {
        "s32" => "i32",
        "size_t" => "usize",
        "usb4_core" => "core",
        name => name.strip_prefix("usb4_core_").unwrap_or(name),
    };
    match (pointer, constant) {
        (false, _) => name.into(),
        (true, true) => format!("&{name}"),
        (true, false) => format!("&mut {name}"),
    }
}

/// `peer: &Peer`: `&peer`; `memory: *mut u8`: `&mut u8`; `message: &[u8; 96]`: `&u8`.
fn rust_type(text: &str) -> String {
    let text = text.rsplit_once(": ").map_or(text, |(_, kind)| kind);
    let text = text.replace("*const ", "&").replace("*mut ", "&mut ");
    let (reference, name) = match (text.strip_prefix("&mut "), text.strip_prefix('&')) {
        (Some(name), _) => ("&mut ", name),
        (None, Some(name)) => ("&", name),
        (None, None) => ("", text.as_str()),
    };
    let name = match name {
        "[u8; 96]" => "u8".into(),
        "RailFsm" => "rail".into(),
        // CqParams: cq_params
        name => name
            .char_indices()
            .fold(String::new(), |mut snake, (at, letter)| {
                if letter.is_uppercase() && at != 0 {
                    snake.push('_');
                }
                snake.push(letter.to_ascii_lowercase());
                snake
            }),
    };
    format!("{reference}{name}")
}

/// Prototypes in the header.
fn c_functions(prefix: &str) -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    let text = header();
    for statement in text.split(';') {
        let Some((before, parameters)) = statement.split_once('(') else {
            continue;
        };
        let before = before.trim_end();
        let at = before.rfind([' ', '*', '\n']).map_or(0, |at| at + 1);
        let (result, name) = before.split_at(at);
        if !name.starts_with(prefix) {
            continue;
        }
        let parameters = list(parameters.trim_end().trim_end_matches(')'));
        let parameters = parameters
            .iter()
            .filter(|text| *text != "void")
            .map(|text| c_type(text));
        let result = result.lines().last().unwrap().trim();
        found.insert(name.into(), (parameters.collect(), c_type(result)));
    }
    found
}

/// Functions defined (`extern "C" fn`) or imported (`fn ...;`) by the Rust side.
fn rust_functions(prefix: &str) -> BTreeMap<String, Signature> {
    let mut found = BTreeMap::new();
    let text = sources();
    for (at, _) in text.match_indices(&format!("fn {prefix}")) {
        let rest = &text[at + 3..];
        let (name, rest) = rest.split_once('(').unwrap();
        let end = rest.find(['{', ';']).unwrap();
        // `&[u8; 96]` has one, too.
        let end = if rest[..end].ends_with("[u8") {
            rest[end + 1..].find(['{', ';']).unwrap() + end + 1
        } else {
            end
        };
        let (parameters, result) = rest[..end].rsplit_once(')').unwrap();
        let result = result.trim().strip_prefix("-> ").unwrap_or("void");
        let parameters = list(parameters).iter().map(|text| rust_type(text)).collect();
        found.insert(name.into(), (parameters, rust_type(result.trim())));
    }
    found
}

#[test]
fn every_function_of_the_core_is_declared_as_it_is() {
    let (c, rust) = (c_functions("usb4_core_"), rust_functions("usb4_core_"));
    assert!(rust.len() > 30, "{rust:?}");
    assert_eq!(c, rust);
}

#[test]
fn every_function_the_core_needs_is_declared_as_it_is_called() {
    let (c, rust) = (c_functions("usb4_home_"), rust_functions("usb4_home_"));
    assert!(rust.len() > 20, "{rust:?}");
    assert_eq!(c, rust);
}

#[test]
fn constants_have_one_value() {
    let value = |line: &str, sign: &str| {
        Some(
            line.split_once(sign)?
                .1
                .trim()
                .trim_end_matches([',', ';'])
                .to_string(),
        )
    };
    let text = header();
    let c = text.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("USB4_CORE_")?;
        Some((name.split(['\t', ' ']).next()?.to_string(), value(line, "=")?))
    });
    let text = sources();
    let rust = text.lines().filter_map(|line| {
        let name = line.strip_prefix("pub const ")?.split(':').next()?;
        let known = ["ORDER_", "RAIL_", "QUEUE_", "QP_", "QPS_", "SRQ_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        known.then_some((name.to_string(), value(line, "=")?))
    });
    let (c, rust): (BTreeMap<_, _>, BTreeMap<_, _>) = (c.collect(), rust.collect());
    assert!(rust.len() > 10, "{rust:?}");
    assert_eq!(c, rust);
}
