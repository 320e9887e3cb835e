//! Formats sizes as Kubernetes quantities.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Uses the largest binary unit that gives a whole number.
pub(crate) fn to_quantity(bytes: u64) -> Quantity {
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
    use mainstay_manifests::quantity::to_bytes;

    use super::*;

    #[test]
    fn quantity_round_trips() {
        for size in [0, 1, 1_000, 1 << 10, 16 << 30, (16 << 30) + 1, u64::MAX] {
            assert_eq!(to_bytes(&to_quantity(size)), Ok(size));
        }
        assert_eq!(to_quantity(16 << 30).0, "16Gi");
    }
}
