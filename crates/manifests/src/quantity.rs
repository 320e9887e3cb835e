//! Kubernetes quantities as numbers of bytes: `8Gi`, `500M`, `1.5e3`, `100`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Why a quantity is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// Not a number with an optional unit.
    #[error("invalid quantity {text:?}")]
    Syntax {
        /// The invalid quantity.
        text: String,
    },
    /// Negative.
    #[error("quantity {text:?} must not be negative")]
    Negative {
        /// The invalid quantity.
        text: String,
    },
    /// More than 64 bits can represent.
    #[error("quantity {text:?} exceeds 64 bits")]
    TooLarge {
        /// The invalid quantity.
        text: String,
    },
}

/// Units with their factor as numerator and denominator.
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
/// Maximum number of decimals; keeps the arithmetic within 128 bits.
const MAX_DECIMALS: usize = 12;

/// The number of bytes of a quantity, rounded up.
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
    let (numerator, denominator) = parse_unit(unit).ok_or_else(syntax)?;
    let digits: u128 = digits.parse().map_err(|_| overlarge())?;
    let scaled = digits.checked_mul(numerator).ok_or_else(overlarge)?;
    let divisor = 10u128.pow(decimals) * denominator;
    u64::try_from(scaled.div_ceil(divisor)).map_err(|_| overlarge())
}

/// All digits, and how many of them are decimals.
fn parse_digits(number: &str) -> Option<(String, u32)> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Trailing zeros must not count toward the limit of decimals.
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let is_number = !number.trim_matches('.').is_empty() && !fraction.contains('.');
    let decimals = u32::try_from(fraction.len()).ok()?;
    (is_number && fraction.len() <= MAX_DECIMALS).then_some((digits, decimals))
}

/// The factor of a unit or of a power of ten.
fn parse_unit(unit: &str) -> Option<(u128, u128)> {
    if let Some((_, numerator, denominator)) = UNITS.iter().find(|(name, _, _)| *name == unit) {
        return Some((*numerator, *denominator));
    }
    let power: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
    let scale = 10u128.checked_pow(power.unsigned_abs())?;
    // A larger exponent does not fit into 64 bits, in either direction.
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
    fn every_quantity_notation_is_parsed() {
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
    fn invalid_quantity_is_an_error() {
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
