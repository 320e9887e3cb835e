//! The version of etcd in the tag of an image.

use std::fmt;

/// A version of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtcdVersion {
    /// Major version, 3 so far.
    pub major: u64,
    /// Minor version; it can change the storage format.
    pub minor: u64,
    /// Patch version; bug fixes only.
    pub patch: u64,
}

impl EtcdVersion {
    /// The version `major.minor.patch`.
    pub const fn new(major: u64, minor: u64, patch: u64) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// The version in the tag of an image: `…/etcd:v3.5.21`, `etcd:3.4.34-0@sha256:…`. `None` if the tag is not
    /// a version of etcd.
    pub fn from_image(image: &str) -> Option<Self> {
        let (name, _digest) = image.split_once('@').unwrap_or((image, ""));
        // A registry can contain a port, so only the last path component is searched for the tag.
        let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
        let (_, tag) = last.split_once(':')?;
        // Majors below 3 version a wrapper such as etcd-wrapper:v0.6.2, not etcd.
        Self::parse(tag).filter(|version| version.major >= 3)
    }

    /// Parses `3.5.21` or `v3.5.21`, optionally with a suffix after `-` or `+`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (numbers, _) = text.split_once(['-', '+']).unwrap_or((text, ""));
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let version = Self::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_parsed_from_the_image_tag() {
        for (image, expected) in [
            ("registry:5000/etcd-development/etcd:v3.5.21", (3, 5, 21)),
            ("etcd:3.4.34-0", (3, 4, 34)),
            ("etcd:3.6.0+build@sha256:0123", (3, 6, 0)),
            ("etcd:v3.5.21@sha256:00", (3, 5, 21)),
            ("host:5000/etcd:3.6.1-0", (3, 6, 1)),
        ] {
            let (major, minor, patch) = expected;
            let version = EtcdVersion::new(major, minor, patch);
            assert_eq!(EtcdVersion::from_image(image), Some(version), "{image}");
        }
    }

    #[test]
    fn tag_without_a_full_version_gives_none() {
        for image in [
            "etcd",
            "registry:5000/etcd",
            "etcd:latest",
            "etcd:3.5",
            "etcd:3.5.1.2",
            "etcd@sha256:0123",
            "etcd-wrapper:v0.6.2",
        ] {
            assert_eq!(EtcdVersion::from_image(image), None, "{image}");
        }
    }
}
