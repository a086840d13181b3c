//! What doctor says.

use std::fmt;

use serde::Serialize;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// As it should be.
    Ok,
    /// Works, with something to know.
    Note,
    /// NCCL would not use USB4, or the job would fail.
    Problem,
}

/// One sentence about one thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// What it is about, a word that stays.
    pub(crate) about: &'static str,
    pub(crate) text: String,
    /// The command that mends it.
    pub(crate) mend: Option<String>,
}

impl Finding {
    pub(crate) fn ok(about: &'static str, text: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            about,
            text: text.into(),
            mend: None,
        }
    }

    pub(crate) fn note(about: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            level: Level::Note,
            about,
            text: text.into(),
            mend: Some(mend.into()),
        }
    }

    pub(crate) fn problem(about: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            level: Level::Problem,
            about,
            text: text.into(),
            mend: Some(mend.into()),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        };
        write!(f, "{level:<8} {:<10} {}", self.about, self.text)?;
        match &self.mend {
            Some(mend) => write!(f, "\n{:20}$ {mend}", ""),
            None => Ok(()),
        }
    }
}
