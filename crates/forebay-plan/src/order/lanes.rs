//! Lanes: how many an order has, and among how many ranks they divide.

/// Lanes that a group order has at least where the batch allows: every power of two up to 8 ranks
/// gets the same stream, and samples of one group are spread over eight times as many batches.
const MIN_LANES: u64 = 8;

/// The lanes of a group order: those that were asked for, else the smallest multiple of W that
/// divides G and is at least 8, else the largest.
///
/// # Errors
/// The numbers that would work, where the one that was asked for does not.
pub(super) fn choose(batch: u64, ranks: u64, asked: Option<u64>) -> Result<u64, String> {
    // L = W·k divides G = W·B exactly where k divides B.
    let works: Vec<u64> = divisors(batch).into_iter().map(|each| each * ranks).collect();
    match asked {
        None => Ok(works.into_iter().find(|lanes| *lanes >= MIN_LANES).unwrap_or(batch * ranks)),
        Some(lanes) if works.binary_search(&lanes).is_ok() => Ok(lanes),
        Some(_) => Err(list(&works)),
    }
}

/// All divisors of a positive number, ascending.
pub(super) fn divisors(number: u64) -> Vec<u64> {
    let mut found = vec![1];
    let mut rest = number;
    let mut factor = 2;
    while factor <= rest / factor {
        factor_out(&mut found, &mut rest, factor);
        factor += 1;
    }
    if rest > 1 {
        let prime = rest;
        factor_out(&mut found, &mut rest, prime);
    }
    found.sort_unstable();
    found
}

/// Takes a prime factor out of `rest` and multiplies the divisors `found` so far by its powers.
fn factor_out(found: &mut Vec<u64>, rest: &mut u64, prime: u64) {
    let without = found.len();
    let mut power = 1;
    while rest.is_multiple_of(prime) {
        *rest /= prime;
        power *= prime;
        for place in 0..without {
            found.push(found[place] * power);
        }
    }
}

/// Numbers for a message: all of them, or the first dozen and the last.
pub(crate) fn list(numbers: &[u64]) -> String {
    /// A message stays readable on one line.
    const SHOWN: usize = 12;
    let words = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    match numbers {
        [.., last] if numbers.len() > SHOWN + 1 => format!("{}, ..., {last}", words(&numbers[..SHOWN])),
        _ => words(numbers),
    }
}
