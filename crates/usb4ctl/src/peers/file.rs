//! What `usb4ctl peers` remembers: a text file, a line each.
//!
//! ```text
//! policy listed
//! allow 3f0c...9a d3b1a2c4-0102-0304-a506-0708090a0b0c
//! allow 77aa...01 any
//! ```

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use anyhow::{Context, Result, bail};
use usb4_ring::{Policy, Rule, Rules};

/// Where it is unless somebody says otherwise. packaging/udev has the path, too.
pub(super) const PATH: &str = "/etc/usb4-rdma/peers";

const HEAD: &str =
    "# Which neighbours usb4_rdma lets in: written by `usb4ctl peers`, applied when the module is loaded.\n";

/// What the file says; nothing if there is none.
///
/// # Errors
///
/// It cannot be read, or does not parse.
pub(super) fn load(path: &Path) -> Result<Rules> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Rules::default()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Puts `rules` in the place of what the file says, all of it or nothing.
///
/// # Errors
///
/// It cannot be written.
pub(super) fn save(path: &Path, rules: &Rules) -> Result<()> {
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = path.with_extension("new");
        let mut file = fs::File::create(&new)?;
        file.write_all(text(rules).as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

fn text(rules: &Rules) -> String {
    let mut text = String::from(HEAD);
    // To a string: does not fail.
    let _ = writeln!(text, "policy {}", super::name(rules.policy));
    for rule in &rules.rules {
        let _ = writeln!(text, "allow {} {}", rule.node, super::router(rule.router));
    }
    text
}

fn parse(text: &str) -> Result<Rules> {
    let mut rules = Rules::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut take = || -> Result<()> {
            match words.as_slice() {
                [] => {}
                ["policy", "open"] => rules.policy = Policy::Open,
                ["policy", "listed"] => rules.policy = Policy::Listed,
                ["allow", node, router] => rules.rules.push(Rule {
                    node: node.parse()?,
                    router: match *router {
                        "any" => None,
                        router => Some(router.parse()?),
                    },
                }),
                _ => bail!("neither `policy open`, `policy listed` nor `allow NODE ROUTER`"),
            }
            Ok(())
        };
        take().with_context(|| format!("line {number}"))?;
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use usb4_ring::NodeId;

    const ROUTER: &str = "d3b1a2c4-0102-0304-a506-0708090a0b0c";

    fn some() -> Rules {
        Rules {
            policy: Policy::Listed,
            rules: vec![
                Rule {
                    node: NodeId(5),
                    router: Some(ROUTER.parse().unwrap()),
                },
                Rule {
                    node: NodeId(6),
                    router: None,
                },
            ],
        }
    }

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let folder = std::env::temp_dir().join(format!("usb4ctl-peers-{}", std::process::id()));
        let path = folder.join("deeper/peers");
        assert_eq!(load(&path).unwrap(), Rules::default());
        save(&path, &some()).unwrap();
        assert_eq!(load(&path).unwrap(), some());
        save(&path, &Rules::default()).unwrap();
        assert_eq!(load(&path).unwrap(), Rules::default());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_line_that_means_nothing_is_named() {
        let node = NodeId(5);
        for (bad, why) in [
            ("policy closed", "line 1"),
            ("\npolicy open\nalow x y", "line 3"),
            ("allow 5 any", "32 hexadecimal"),
            (&format!("allow {node} everybody"), "8-4-4-4-12"),
            (&format!("allow {node}"), "line 1"),
        ] {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.contains(why), "{bad}: {error}");
        }
        let commented = format!("# all of them\n\n  policy  listed # yes\nallow {node} any\n");
        assert_eq!(parse(&commented).unwrap().rules.len(), 1);
    }
}
