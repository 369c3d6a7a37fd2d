use std::time::Duration;

/// Pauses between tries: they double from the least to the most, and jitter only lengthens them,
/// so that no dependency ever sees more tries than the least pause allows.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    min: Duration,
    max: Duration,
    failures: u32,
    random: u64,
}

impl Backoff {
    pub(crate) const fn new(min: Duration, max: Duration, seed: u64) -> Self {
        Self { min, max, failures: 0, random: seed }
    }

    /// The pause after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = self.min.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.jittered(doubled.min(self.max))
    }

    /// The least pause, without counting a failure.
    pub(crate) fn least(&mut self) -> Duration {
        self.jittered(self.min)
    }

    pub(crate) const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Adds up to a quarter, by the splitmix64 generator.
    fn jittered(&mut self, pause: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let share = u32::try_from((z ^ (z >> 31)) % 256).unwrap_or(0);
        pause + pause.saturating_mul(share) / 1_024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_cap_and_jitter_only_lengthens() {
        let (min, max) = (Duration::from_secs(1), Duration::from_secs(15));
        let mut backoff = Backoff::new(min, max, 7);
        for base in [1, 2, 4, 8, 15, 15, 15] {
            let base = Duration::from_secs(base);
            let pause = backoff.next();
            assert!(pause >= base && pause <= base + base / 4, "{pause:?} for {base:?}");
        }
        for _ in 0..100 {
            backoff.next();
        }
        backoff.reset();
        assert!(backoff.next() <= min + min / 4);
    }

    #[test]
    fn the_seed_decides() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(9), seed);
            [backoff.next(), backoff.next()]
        };
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
