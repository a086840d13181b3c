//! Which rank this is, as the program that started it says.

use std::env;

use anyhow::{Context, Result, ensure};

/// Variables of launchers: rank, number of ranks, rank on this host. `torchrun`, Open MPI, MPICH and Intel MPI, Slurm.
const LAUNCHERS: [[&str; 3]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// Where a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Its number among the ranks of this host: the GPU it takes.
    pub(crate) local: usize,
}

impl Place {
    /// From the environment; without a launcher, the only rank.
    ///
    /// # Errors
    ///
    /// When the launcher's numbers make no sense.
    pub(crate) fn find() -> Result<Self> {
        Self::from(|name| env::var(name).ok())
    }

    fn from(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let number = |name: &str| match variable(name) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .with_context(|| format!("{name}={text:?} is no number")),
        };
        for [rank, ranks, local] in LAUNCHERS {
            let (Some(at), Some(of)) = (number(rank)?, number(ranks)?) else {
                continue;
            };
            ensure!(at < of, "{rank}={at} is not below {ranks}={of}");
            return Ok(Self {
                rank: at,
                ranks: of,
                local: number(local)?.unwrap_or(0),
            });
        }
        Ok(Self {
            rank: 0,
            ranks: 1,
            local: 0,
        })
    }
}

/// Where ranks meet if nobody says: beside the port that `torchrun` uses itself.
pub(crate) fn root() -> String {
    let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
    let port = env::var("MASTER_PORT")
        .ok()
        .and_then(|port| port.parse::<u16>().ok());
    format!("{host}:{}", port.map_or(29_555, |port| port.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(variables: &[(&str, &str)]) -> Result<Place> {
        Place::from(|name| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| (*value).to_string())
        })
    }

    #[test]
    fn each_launcher_says_who_a_rank_is() {
        let place = find(&[("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1")]).unwrap();
        assert_eq!((place.rank, place.ranks, place.local), (3, 4, 1));
        let place = find(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!((place.rank, place.ranks, place.local), (1, 2, 0));
        assert_eq!(find(&[]).unwrap().ranks, 1);
    }

    #[test]
    fn numbers_that_make_no_sense_are_named() {
        let wrong = find(&[("RANK", "2"), ("WORLD_SIZE", "2")]).unwrap_err();
        assert!(wrong.to_string().contains("RANK=2"), "{wrong}");
        assert!(find(&[("RANK", "x"), ("WORLD_SIZE", "2")]).is_err());
    }
}
