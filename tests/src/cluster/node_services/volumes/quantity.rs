//! Parses quantities of storage.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const UNITS: [(&str, u64); 11] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("", 1),
];

/// Bytes of a whole number with a unit; `None` for other forms of quantities.
pub fn parse_bytes(quantity: &Quantity) -> Option<u64> {
    UNITS.iter().find_map(|(unit, factor)| {
        let number: u64 = quantity.0.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*factor)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantity_units_are_powers_of_two_or_of_ten() {
        let size = |text: &str| parse_bytes(&Quantity(text.to_owned()));
        assert_eq!(size("4096"), Some(4096));
        assert_eq!(size("10Gi"), Some(10 * 1024 * 1024 * 1024));
        assert_eq!(size("10G"), Some(10_000_000_000));
        assert_eq!(size("64Mi"), Some(64 * 1024 * 1024));
        assert_eq!(size("many"), None);
        assert_eq!(size("99999999999Pi"), None);
    }
}
