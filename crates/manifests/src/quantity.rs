//! Quantities of Kubernetes as numbers of bytes: `8Gi`, `500M`, `1.5e3`, `100`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Why a quantity is no number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// It does not begin with a number, or does not end with a unit.
    #[error("{text:?} is no quantity")]
    Syntax {
        /// The text.
        text: String,
    },
    /// It is below zero.
    #[error("{text:?} is below zero")]
    Negative {
        /// The text.
        text: String,
    },
    /// It does not fit into 64 bits.
    #[error("{text:?} is more than can be counted")]
    TooLarge {
        /// The text.
        text: String,
    },
}

/// Factors as a numerator and a denominator.
const UNITS: [(&str, u128, u128); 16] = [
    ("", 1, 1),
    ("n", 1, 1_000_000_000),
    ("u", 1, 1_000_000),
    ("m", 1, 1_000),
    ("k", 1_000, 1),
    ("M", 1_000_000, 1),
    ("G", 1_000_000_000, 1),
    ("T", 1_000_000_000_000, 1),
    ("P", 1_000_000_000_000_000, 1),
    ("E", 1_000_000_000_000_000_000, 1),
    ("Ki", 1 << 10, 1),
    ("Mi", 1 << 20, 1),
    ("Gi", 1 << 30, 1),
    ("Ti", 1 << 40, 1),
    ("Pi", 1 << 50, 1),
    ("Ei", 1 << 60, 1),
];
/// More digits behind the point than any quantity in use has.
const MAX_DECIMALS: usize = 12;

/// The bytes a quantity stands for; a fraction of one counts as a whole one.
pub fn to_bytes(quantity: &Quantity) -> Result<u64, QuantityError> {
    let text = quantity.0.as_str();
    let syntax = || QuantityError::Syntax { text: text.into() };
    let overlarge = || QuantityError::TooLarge { text: text.into() };
    if text.starts_with('-') {
        return Err(QuantityError::Negative { text: text.into() });
    }
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, unit) = unsigned.split_at(end);
    let (digits, decimals) = parse_digits(number).ok_or_else(syntax)?;
    let (times, by) = parse_unit(unit).ok_or_else(syntax)?;
    let digits: u128 = digits.parse().map_err(|_| overlarge())?;
    let top = digits.checked_mul(times).ok_or_else(overlarge)?;
    let bottom = 10u128.pow(decimals) * by;
    u64::try_from(top.div_ceil(bottom)).map_err(|_| overlarge())
}

/// All digits, and how many of them are behind the point.
fn parse_digits(number: &str) -> Option<(String, u32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let is_number = !number.trim_matches('.').is_empty() && !fraction.contains('.');
    let decimals = u32::try_from(fraction.len()).ok()?;
    (is_number && fraction.len() <= MAX_DECIMALS).then_some((digits, decimals))
}

/// A unit, or a power of ten.
fn parse_unit(unit: &str) -> Option<(u128, u128)> {
    if let Some((_, times, by)) = UNITS.iter().find(|(name, _, _)| *name == unit) {
        return Some((*times, *by));
    }
    let power: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
    let scale = 10u128.checked_pow(power.unsigned_abs())?;
    // Beyond this nothing fits into 64 bits, in either direction.
    if power.unsigned_abs() > 19 {
        return None;
    }
    Some(if power < 0 { (1, scale) } else { (scale, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<u64, QuantityError> {
        to_bytes(&Quantity(text.into()))
    }

    #[test]
    fn every_way_to_write_a_number_of_bytes_is_understood() {
        for (text, expected) in [
            ("8Gi", 8 << 30),
            ("100Mi", 100 << 20),
            ("1G", 1_000_000_000),
            ("1.5Gi", 3 << 29),
            (".5Ki", 512),
            ("5.", 5),
            ("12e6", 12_000_000),
            ("1E3", 1000),
            ("5e-1", 1),
            ("1500m", 2),
            ("+7", 7),
            ("0", 0),
            ("1.0000000000000000000", 1),
            ("15Ei", 15 << 60),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_of_bytes_is_an_error() {
        for text in ["", "Gi", ".", "1.2.3", "8GiB", "1e", "8 Gi", "e3"] {
            assert!(
                matches!(parse(text), Err(QuantityError::Syntax { .. })),
                "{text}"
            );
        }
        assert!(matches!(parse("-1"), Err(QuantityError::Negative { .. })));
        for text in ["16Ei", "99999999999999999999999999999999999999999", "20e18"] {
            assert!(
                matches!(parse(text), Err(QuantityError::TooLarge { .. })),
                "{text}"
            );
        }
    }
}
