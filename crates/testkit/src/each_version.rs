//! Macros that declare one test per etcd version.

/// Declares a test for every [`EtcdRelease`](crate::EtcdRelease), named `<claim>::on_<version>`.
/// The crate of the test must depend on tokio.
///
/// ```
/// mainstay_testkit::each_version! {
///     async fn new_server_has_no_keys(version) {
///         let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
///         assert_eq!(etcd.all_keys().await, []);
///     }
/// }
/// # use mainstay_testkit::{EtcdOptions, EtcdServer};
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! each_version {
    ($(async fn $claim:ident($version:ident) $body:block)+) => {$(
        mod $claim {
            #[allow(unused_imports, clippy::allow_attributes, reason = "a test body may use no import")]
            use super::*;

            async fn check($version: $crate::EtcdRelease) $body

            #[tokio::test]
            async fn on_3_4() {
                check($crate::EtcdRelease::V3_4).await;
            }

            #[tokio::test]
            async fn on_3_5() {
                check($crate::EtcdRelease::V3_5).await;
            }

            #[tokio::test]
            async fn on_3_5_new() {
                check($crate::EtcdRelease::V3_5New).await;
            }

            #[tokio::test]
            async fn on_3_6() {
                check($crate::EtcdRelease::V3_6).await;
            }

            #[tokio::test]
            async fn on_3_7() {
                check($crate::EtcdRelease::V3_7).await;
            }
        }
    )+};
}

/// Declares a test for the newest [`EtcdRelease`](crate::EtcdRelease), named `<claim>::on_3_7`, and one
/// for each other version in `<claim>::soak`. Use it for slow tests that do not depend on the version. The crate of the
/// test must depend on tokio.
///
/// ```
/// mainstay_testkit::newest_version! {
///     async fn new_server_has_no_keys(version) {
///         let etcd = EtcdServer::start(version, EtcdOptions::new()).await;
///         assert_eq!(etcd.all_keys().await, []);
///     }
/// }
/// # use mainstay_testkit::{EtcdOptions, EtcdServer};
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! newest_version {
    ($(async fn $claim:ident($version:ident) $body:block)+) => {$(
        mod $claim {
            #[allow(unused_imports, clippy::allow_attributes, reason = "a test body may use no import")]
            use super::*;

            async fn check($version: $crate::EtcdRelease) $body

            #[tokio::test]
            async fn on_3_7() {
                check($crate::EtcdRelease::V3_7).await;
            }

            mod soak {
                use super::check;

                #[tokio::test]
                async fn on_3_4() {
                    check($crate::EtcdRelease::V3_4).await;
                }

                #[tokio::test]
                async fn on_3_5() {
                    check($crate::EtcdRelease::V3_5).await;
                }

                #[tokio::test]
                async fn on_3_5_new() {
                    check($crate::EtcdRelease::V3_5New).await;
                }

                #[tokio::test]
                async fn on_3_6() {
                    check($crate::EtcdRelease::V3_6).await;
                }
            }
        }
    )+};
}
