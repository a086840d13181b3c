//! What the fuzz targets do. Each target is a module with `run`, which must not panic on any input, and `seeds`,
//! inputs that reach deep from the start.
//!
//! The files in `targets/` only hand libFuzzer's input to `run`; everything else is here, so that the seeds of
//! all targets also run as plain tests (`cargo test`), without instrumentation.

pub mod control_parse;
pub mod emu_client;
pub mod frame_parse;
mod input;
pub mod link_events;
pub mod nhi_hostile;
pub mod queue_hostile;
pub mod rail_control;
pub mod verbs_hostile;

use std::path::Path;

/// Called by each target before it starts: writes the target's seeds into the directory named by
/// `USB4_FUZZ_SEEDS` and ends the process, if that is set.
pub fn init(target: &str, seeds: fn() -> Vec<Vec<u8>>) {
    let Some(dir) = std::env::var_os("USB4_FUZZ_SEEDS") else {
        return;
    };
    match write_seeds(Path::new(&dir), &seeds()) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{target}: cannot write seeds to {}: {error}", dir.display());
            std::process::exit(1);
        }
    }
}

fn write_seeds(dir: &Path, seeds: &[Vec<u8>]) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    for (number, seed) in seeds.iter().enumerate() {
        std::fs::write(dir.join(format!("seed-{number:03}")), seed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    /// Runs every seed, every prefix of it, and the seed with each byte changed.
    fn try_all(run: fn(&[u8]), seeds: &[Vec<u8>]) {
        assert!(!seeds.is_empty());
        for seed in seeds {
            run(seed);
            for at in 0..seed.len().min(400) {
                run(&seed[..at]);
                let mut changed = seed.clone();
                changed[at] ^= 0xff;
                run(&changed);
            }
        }
    }

    #[test]
    fn frame_parse_survives_its_seeds() {
        try_all(crate::frame_parse::run, &crate::frame_parse::seeds());
    }

    #[test]
    fn control_parse_survives_its_seeds() {
        try_all(crate::control_parse::run, &crate::control_parse::seeds());
    }

    #[test]
    fn rail_control_survives_its_seeds() {
        try_all(crate::rail_control::run, &crate::rail_control::seeds());
    }

    #[test]
    fn link_events_survives_its_seeds() {
        try_all(crate::link_events::run, &crate::link_events::seeds());
    }

    #[test]
    fn queue_hostile_survives_its_seeds() {
        try_all(crate::queue_hostile::run, &crate::queue_hostile::seeds());
    }

    #[test]
    fn verbs_hostile_survives_its_seeds() {
        try_all(crate::verbs_hostile::run, &crate::verbs_hostile::seeds());
    }

    /// As a fuzzer begins: without a compiler's help, but with many seeds' worth of luck.
    #[test]
    fn verbs_hostile_survives_chance() {
        for seed in 1..=2_000 {
            crate::verbs_hostile::run(&crate::input::Rng::new(seed).bytes(600));
        }
    }

    #[test]
    fn nhi_hostile_survives_its_seeds() {
        try_all(crate::nhi_hostile::run, &crate::nhi_hostile::seeds());
    }

    #[test]
    fn emu_client_survives_its_seeds() {
        try_all(crate::emu_client::run, &crate::emu_client::seeds());
    }
}
