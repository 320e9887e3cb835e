//! Sizes as Kubernetes writes them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Longest first, so that `Ki` is not read as `K`.
const UNITS: [(&str, u128); 14] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("Ei", 1 << 60),
    ("k", 1_000),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("E", 1_000_000_000_000_000_000),
    ("", 1),
];
/// Digits behind the point that can still weigh a byte.
const PRECISION: usize = 18;

/// The number of bytes, rounded up as Kubernetes does; `None` for what is no size or too large for one.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.trim();
    if let Some(milli) = text.strip_suffix('m') {
        return Some(milli.parse::<u64>().ok()?.div_ceil(1_000));
    }
    if let Some((mantissa, exponent)) = exponential(text) {
        let scale = 10_u128.checked_pow(exponent)?;
        return scaled(mantissa, scale);
    }
    let (unit, scale) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    scaled(text.strip_suffix(unit)?, *scale)
}

/// `12e3` as `12` and `3`.
fn exponential(text: &str) -> Option<(&str, u32)> {
    let at = text.find(['e', 'E'])?;
    let exponent = text.get(at + 1..)?;
    let exponent = exponent.strip_prefix('+').unwrap_or(exponent);
    Some((text.get(..at)?, exponent.parse().ok()?))
}

fn scaled(number: &str, scale: u128) -> Option<u64> {
    let number = number.strip_prefix('+').unwrap_or(number);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || whole.len() + fraction.len() == 0 {
        return None;
    }
    let fraction = fraction.get(..PRECISION).unwrap_or(fraction);
    let weight = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let number = |digits: &str| {
        if digits.is_empty() {
            Some(0)
        } else {
            digits.parse::<u128>().ok()
        }
    };
    let below = number(fraction)?.checked_mul(scale)?.div_ceil(weight);
    let total = number(whole)?.checked_mul(scale)?.checked_add(below)?;
    u64::try_from(total).ok()
}

/// A size as Kubernetes writes it: the largest binary unit that leaves nothing behind the point.
pub fn quantity(bytes: u64) -> Quantity {
    let binary = [
        ("Ei", 60),
        ("Pi", 50),
        ("Ti", 40),
        ("Gi", 30),
        ("Mi", 20),
        ("Ki", 10),
    ];
    let whole = binary
        .iter()
        .find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    Quantity(match whole {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_the_same_number() {
        for (text, expected) in [
            ("16Gi", 16 << 30),
            ("1.5Gi", 3 << 29),
            ("500M", 500_000_000),
            ("1k", 1_000),
            ("12e3", 12_000),
            ("1E", 1_000_000_000_000_000_000),
            ("8589934592", 8 << 30),
            ("1500m", 2),
            (".5Ki", 512),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_nothing() {
        for text in ["", "Gi", "much", "-1Gi", "1.2.3", "1e99", "99999999999Ei"] {
            assert_eq!(bytes(&Quantity(text.to_owned())), None, "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for size in [0, 1, 1_000, 1 << 10, 16 << 30, (16 << 30) + 1, u64::MAX] {
            assert_eq!(bytes(&quantity(size)), Some(size));
        }
        assert_eq!(quantity(16 << 30).0, "16Gi");
    }
}
