//! Real time and model time: the model's clock runs `time_scale` times slower than the real one.
use std::time::{Duration, Instant};

use forebay_model::ModelTime;

/// Nanoseconds of real time since the emulator's start.
pub(crate) type RealTime = u64;

/// Both clocks of one emulator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    time_scale: f64,
}

impl Clock {
    /// A clock that starts now.
    pub(crate) fn new(time_scale: f64) -> Clock {
        Clock { start: Instant::now(), time_scale }
    }

    /// Real seconds per model second.
    pub(crate) fn time_scale(&self) -> f64 {
        self.time_scale
    }

    /// Real time since the start.
    pub(crate) fn real_now(&self) -> RealTime {
        self.start.elapsed().as_nanos() as u64
    }

    /// Model time since the start.
    pub(crate) fn model_now(&self) -> ModelTime {
        // Exact to the nanosecond for 104 days (2^53 ns).
        (self.real_now() as f64 / self.time_scale).round() as u64
    }

    /// Converts model time to real time.
    pub(crate) fn real(&self, model: ModelTime) -> RealTime {
        (model as f64 * self.time_scale).round() as u64
    }

    /// Converts a duration of model time to real time.
    pub(crate) fn scaled(&self, model: Duration) -> Duration {
        model.mul_f64(self.time_scale)
    }
}
