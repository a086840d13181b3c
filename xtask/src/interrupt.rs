//! Ctrl-C and SIGTERM: what waits notices, fails, and everything is cleaned up on the way out.

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static WANTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on signals only ask for an orderly end. For commands that do all their waiting with [`check`].
pub(crate) fn handle() -> Result<()> {
    let wanted = WANTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, Arc::clone(wanted)).context("catch signals")?;
    }
    Ok(())
}

/// Fails once the end has been asked for.
pub(crate) fn check() -> Result<()> {
    if WANTED.get().is_some_and(|wanted| wanted.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}
