//! Which of several processes this one is, from flags or from what launchers put into the environment.

use std::ops::Range;
use std::time::Duration;

use super::secret::Secret;
use crate::{ExecutionError, SeatError};

/// How long processes wait for one another before a run, unless told otherwise.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables of launchers: rank, number of ranks. torchrun; Open MPI; MPICH and its kin; Slurm.
const LAUNCHERS: [(&str, &str); 4] = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// The variable that holds the secret of a run.
const SECRET_VARIABLE: &str = "HLO_OPT_SECRET";

/// Variables of launchers: this process's number among those of its machine.
const LOCAL_RANKS: [&str; 4] = ["LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// A process's place among all.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Where rank 0 listens: `HOST:PORT`.
    pub coordinator: String,
    /// This process.
    pub rank: u32,
    /// All processes.
    pub n_ranks: u32,
    /// How long to wait for the others at the beginning.
    pub connect_timeout: Duration,
    /// What all ranks know, if they are to prove it.
    pub secret: Option<Secret>,
}

/// What the command line says of the seat.
#[derive(Clone, Default, Debug)]
pub struct SeatFlags {
    /// `HOST:PORT`.
    pub coordinator: Option<String>,
    /// This process.
    pub rank: Option<u32>,
    /// All processes.
    pub n_ranks: Option<u32>,
    /// How long to wait for the others at the beginning.
    pub connect_timeout: Option<Duration>,
    /// What all ranks know; HLO_OPT_SECRET if not given.
    pub secret: Option<Secret>,
}

/// Looks a variable up.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

fn number(variable: &'static str, text: &str) -> Result<u32, SeatError> {
    text.trim().parse().map_err(|_| SeatError::NoNumber { variable, found: text.into() })
}

impl Seat {
    /// The seat that flags and, where they say nothing, the environment give; `None` for a process alone.
    ///
    /// # Errors
    /// A part is missing or makes no sense: which one.
    pub fn find(flags: &SeatFlags, environment: Lookup<'_>) -> Result<Option<Seat>, SeatError> {
        let variable = |name: &'static str| Some((name, environment(name)?));
        let launcher = LAUNCHERS.iter().find_map(|&(rank, size)| Some((variable(rank)?, variable(size)?)));
        let (rank, n_ranks) = match (flags.rank, flags.n_ranks, launcher) {
            (rank, n_ranks, Some(((rank_name, rank_text), (size_name, size_text)))) => (
                Some(rank.map_or_else(|| number(rank_name, &rank_text), Ok)?),
                Some(n_ranks.map_or_else(|| number(size_name, &size_text), Ok)?),
            ),
            (rank, n_ranks, None) => (rank, n_ranks),
        };
        let coordinator = match &flags.coordinator {
            Some(place) => Some(place.clone()),
            None => coordinator_of(environment)?,
        };
        let alone = n_ranks.is_none_or(|n| n == 1) && rank.is_none_or(|rank| rank == 0);
        if alone && (n_ranks.is_some() || flags.coordinator.is_none()) {
            return Ok(None);
        }
        let (Some(rank), Some(n_ranks)) = (rank, n_ranks) else {
            return Err(SeatError::NoRank { launchers: &LAUNCHERS });
        };
        let Some(coordinator) = coordinator else {
            return Err(SeatError::NoCoordinator { n_ranks });
        };
        if rank >= n_ranks {
            return Err(SeatError::RankOutOfRange { rank, n_ranks });
        }
        if coordinator.rsplit_once(':').is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            return Err(SeatError::NoPlace { coordinator });
        }
        let connect_timeout = flags.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        let secret = match (&flags.secret, environment(SECRET_VARIABLE)) {
            (Some(secret), _) => Some(secret.clone()),
            (None, Some(text)) => Some(Secret::new(text.as_bytes(), SECRET_VARIABLE)?),
            (None, None) => None,
        };
        Ok(Some(Seat { coordinator, rank, n_ranks, connect_timeout, secret }))
    }

    /// The flat ids of this process's share of `n_devices` devices.
    ///
    /// # Errors
    /// They cannot be shared equally.
    pub fn devices(&self, n_devices: u32) -> Result<Range<u32>, ExecutionError> {
        let share = n_devices / self.n_ranks.max(1);
        if share * self.n_ranks != n_devices || share == 0 {
            let reason = format!("expected a number of ranks that divides {n_devices} devices, found {}", self.n_ranks);
            return Err(ExecutionError::Ranks { reason });
        }
        Ok(self.rank * share..(self.rank + 1) * share)
    }
}

/// This process's number among those of its machine.
///
/// # Errors
/// The variable is no number.
pub fn local_rank(environment: Lookup<'_>) -> Result<Option<u32>, SeatError> {
    let found = LOCAL_RANKS.iter().find_map(|name| Some((name, environment(name)?)));
    found.map(|(name, text)| number(name, &text)).transpose()
}

/// `MASTER_ADDR:MASTER_PORT`. Where torchrun's own server listens at that port, the next one is taken.
fn coordinator_of(environment: Lookup<'_>) -> Result<Option<String>, SeatError> {
    let (Some(host), Some(port)) = (environment("MASTER_ADDR"), environment("MASTER_PORT")) else { return Ok(None) };
    let port = number("MASTER_PORT", &port)?;
    let is_taken = environment("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host };
    Ok(Some(format!("{host}:{}", port.saturating_add(u32::from(is_taken)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(flags: &SeatFlags, variables: &[(&str, &str)]) -> Result<Option<(String, u32, u32)>, SeatError> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_string());
        Seat::find(flags, &lookup).map(|seat| seat.map(|seat| (seat.coordinator, seat.rank, seat.n_ranks)))
    }

    #[test]
    fn launchers_are_understood() {
        let flags = SeatFlags { coordinator: Some("h:1".into()), ..SeatFlags::default() };
        for (rank, size) in LAUNCHERS {
            assert_eq!(find(&flags, &[(rank, "3"), (size, "8")]), Ok(Some(("h:1".into(), 3, 8))));
        }
        let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "29500")];
        let none = SeatFlags::default();
        assert_eq!(find(&none, &torchrun), Ok(Some(("[::1]:29500".into(), 1, 2))));
        let agent = [&torchrun[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(find(&none, &agent), Ok(Some(("[::1]:29501".into(), 1, 2))));
        let both = SeatFlags { rank: Some(0), n_ranks: Some(4), ..flags };
        assert_eq!(find(&both, &torchrun), Ok(Some(("h:1".into(), 0, 4))));
    }

    #[test]
    fn a_process_alone_has_no_seat() {
        let none = SeatFlags::default();
        assert_eq!(find(&none, &[]), Ok(None));
        assert_eq!(find(&none, &[("RANK", "0"), ("WORLD_SIZE", "1")]), Ok(None));
        assert_eq!(find(&none, &[("MASTER_ADDR", "h"), ("MASTER_PORT", "1")]), Ok(None));
        let one = SeatFlags { n_ranks: Some(1), ..SeatFlags::default() };
        assert_eq!(find(&one, &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Ok(None));
    }

    #[test]
    fn the_secret_of_the_environment_is_taken_where_no_flag_says_one() {
        let flags =
            SeatFlags { coordinator: Some("h:1".into()), rank: Some(0), n_ranks: Some(2), ..SeatFlags::default() };
        let find = |flags: &SeatFlags, text: &'static str| {
            Seat::find(flags, &|name| (name == SECRET_VARIABLE).then(|| text.to_string()))
        };
        assert!(find(&flags, "a secret of the test").unwrap().unwrap().secret.is_some());
        let error = find(&flags, "short").unwrap_err().to_string();
        assert_eq!(error, "HLO_OPT_SECRET: expected a secret of 16 to 4096 bytes, found 5");
        assert!(find(&flags, "").is_err(), "an empty one is no secret");
        let own = Secret::new(b"the secret of the flag", "f").ok();
        assert!(find(&SeatFlags { secret: own, ..flags }, "short").unwrap().unwrap().secret.is_some());
    }

    #[test]
    fn what_is_missing_is_said() {
        let flags = |coordinator: Option<&str>, rank, n_ranks| SeatFlags {
            coordinator: coordinator.map(Into::into),
            rank,
            n_ranks,
            connect_timeout: None,
            secret: None,
        };
        for (flags, expected) in [
            (flags(Some("h:1"), None, None), "--rank and --ranks"),
            (flags(None, Some(0), Some(2)), "--coordinator HOST:PORT"),
            (flags(Some("h:1"), Some(2), Some(2)), "rank 2 of 2"),
            (flags(Some("h"), Some(1), Some(2)), "found `h`"),
            (flags(Some("h:x"), Some(1), Some(2)), "found `h:x`"),
            (flags(Some("h:1"), Some(1), None), "--rank and --ranks"),
        ] {
            assert!(
                find(&flags, &[]).is_err_and(|e| e.to_string().contains(expected)),
                "{expected}: {:?}",
                find(&flags, &[])
            );
        }
        let wrong = find(&SeatFlags::default(), &[("RANK", "x"), ("WORLD_SIZE", "2")]);
        assert!(wrong.is_err_and(|e| e.to_string().contains("RANK: expected a whole number, found `x`")));
    }

    #[test]
    fn shares_are_equal_or_refused() {
        let seat = |rank, n_ranks| Seat {
            coordinator: "h:1".into(),
            rank,
            n_ranks,
            connect_timeout: CONNECT_TIMEOUT,
            secret: None,
        };
        assert_eq!(seat(1, 4).devices(8), Ok(2..4));
        assert!(seat(0, 3).devices(8).is_err());
        assert!(seat(0, 8).devices(4).is_err());
    }
}
