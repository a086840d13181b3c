//! Holds `docs/spec/wire.md` and `docs/spec/nccl.md` to their promise: every numbered rule names tests, and the tests
//! exist.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::{Path, PathBuf};

/// A specification: its file, the letter of its rules, and fewer than it has.
const SPECIFICATIONS: [(&str, char, usize); 2] = [("wire.md", 'W', 50), ("nccl.md", 'N', 20)];

/// A numbered rule of a specification.
struct Rule {
    name: String,
    text: String,
    tests: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(specification: &str) -> String {
    fs::read_to_string(root().join("docs/spec").join(specification)).unwrap()
}

/// Paragraphs and list items, each on one line.
fn blocks(markdown: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in markdown.lines() {
        if line.is_empty() || line.starts_with("* ") || line.starts_with('|') {
            blocks.push(String::new());
        }
        let block = blocks.last_mut().unwrap();
        block.push_str(line.trim());
        block.push(' ');
    }
    blocks
}

fn rules(markdown: &str, letter: char) -> Vec<Rule> {
    let items = blocks(markdown);
    let rule = |block: &String| {
        let rest = block.strip_prefix(&format!("* **{letter}-"))?;
        let (number, rest) = rest.split_once("** ")?;
        let (text, tests) = rest.split_once("Test: ").unwrap_or((rest, ""));
        let tests = tests.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some(Rule {
            name: format!("{letter}-{number}"),
            text: text.to_owned(),
            tests,
        })
    };
    items.iter().filter_map(rule).collect()
}

/// All Rust files of a package, by the first part of a test's path.
fn sources(package: &str) -> Vec<PathBuf> {
    let dir = match package {
        "xtask" | "ofi-provider" | "nccl-net-plugin" | "fuzz" => root().join(package),
        other => root().join("crates").join(other),
    };
    let mut files = vec![];
    let mut open = vec![dir];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                files.push(path);
            }
        }
    }
    files
}

/// Whether `path` is where `module` has its tests: `module.rs`, `module_tests.rs` or a file in `module/`.
fn is_module(path: &Path, module: &str) -> bool {
    let stem = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    stem == module
        || stem.strip_suffix("_tests") == Some(module)
        || path.parent().is_some_and(|dir| dir.ends_with(module))
}

/// Whether `text` defines the test `name`, or the check of the lab.
fn defines_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    let check = format!("fn {name}(lab: &mut Lab)");
    lines.iter().enumerate().any(|(at, line)| {
        let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with("#["));
        let is_test = attributes.into_iter().any(|line| line.starts_with("#[test]"));
        line.trim_start_matches("pub(super) ").starts_with(&check) || (line.starts_with(&function) && is_test)
    })
}

/// What is wrong with a test's name, if something is.
fn problem(test: &str) -> Option<String> {
    let parts: Vec<&str> = test.split("::").collect();
    let [package, module, name] = parts[..] else {
        return Some(format!("{test} is not crate::module::test"));
    };
    let found = sources(package)
        .iter()
        .filter(|path| is_module(path, module))
        .any(|path| defines_test(&fs::read_to_string(path).unwrap(), name));
    (!found).then(|| format!("{test} does not exist"))
}

#[test]
fn every_rule_names_tests_that_exist() {
    let mut problems = vec![];
    for (file, letter, few) in SPECIFICATIONS {
        let rules = rules(&read(file), letter);
        assert!(rules.len() > few, "only {} rules found in {file}", rules.len());
        for rule in &rules {
            if rule.tests.is_empty() {
                problems.push(format!("{}: no test", rule.name));
            }
            let wrong = rule.tests.iter().filter_map(|test| problem(test));
            problems.extend(wrong.map(|wrong| format!("{}: {wrong}", rule.name)));
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

#[test]
fn rules_are_numbered_without_gaps() {
    for (file, letter, _) in SPECIFICATIONS {
        for (at, rule) in rules(&read(file), letter).iter().enumerate() {
            assert_eq!(rule.name, format!("{letter}-{}", at + 1));
        }
    }
}

#[test]
fn every_must_is_in_a_rule() {
    for (file, letter, _) in SPECIFICATIONS {
        let markdown = read(file);
        let (_, body) = markdown.split_once("\n## ").unwrap();
        for block in blocks(body) {
            assert!(
                !block.contains("MUST") || block.starts_with(&format!("* **{letter}-")),
                "outside a rule: {block}"
            );
        }
        for rule in rules(&markdown, letter) {
            assert!(rule.text.contains("MUST"), "{} demands nothing", rule.name);
        }
    }
}
