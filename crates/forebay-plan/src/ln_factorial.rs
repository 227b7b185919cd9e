//! Logarithms of factorials, for numbers of orders and chances.

/// Natural logarithm of `number`!, exact to about 12 digits.
pub(crate) fn ln_factorial(number: u64) -> f64 {
    /// From here on the first terms of Stirling's series are exact to 12 digits.
    const STIRLING: u64 = 32;
    if number < STIRLING {
        return (2..=number).map(|factor| (factor as f64).ln()).sum();
    }
    let x = number as f64;
    x * x.ln() - x + 0.5 * (std::f64::consts::TAU * x).ln() + 1.0 / (12.0 * x) - 1.0 / (360.0 * x.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_logarithm_of_a_factorial_is_smooth_where_the_series_begins() {
        let exact = |number: u64| (2..=number).map(|factor| (factor as f64).ln()).sum::<f64>();
        for number in [0, 1, 2, 31, 32, 33, 100, 1000] {
            let error = (ln_factorial(number) - exact(number)).abs();
            assert!(error <= 1e-10 * exact(number).max(1.0), "{number}: {error}");
        }
    }
}
