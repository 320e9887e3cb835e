//! Provider `GCS`.
//!
//! The client uses Google's XML API, which is similar to S3. Emulators on the package registries implement
//! only the JSON API, without listing, versions or multipart for this client. The server is therefore
//! `SeaweedFS` with anonymous access. A proxy translates the one header that differs: Google's condition
//! "no generation exists" becomes `If-None-Match: *`.

use hyper::http::{HeaderValue, header, request};
use mainstay_store::{Environment, SnapStore, StorageProvider, StoreConfig};

use crate::conformance;
use crate::data::test_transfer_config;
use crate::proxy::Proxy;
use crate::servers::{Access, SeaweedFs};

fn translate_google_request(parts: &mut request::Parts) {
    // Emulators ignore the token; this server treats it as a login attempt.
    parts.headers.remove(header::AUTHORIZATION);
    if parts
        .headers
        .remove("x-goog-if-generation-match")
        .is_some_and(|value| value == "0")
    {
        parts
            .headers
            .insert(header::IF_NONE_MATCH, HeaderValue::from_static("*"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn google_xml_api_passes_the_conformance_tests() {
    let weed = SeaweedFs::start(Access::Anonymous).await;
    let proxy = Proxy::start_translating(&weed.endpoint, translate_google_request).await;
    let config = StoreConfig {
        // Operators configure the endpoint with the path of the JSON API.
        endpoint: Some(format!("{}/storage/v1/", proxy.endpoint).parse().unwrap()),
        transfer: test_transfer_config(),
        ..StoreConfig::new(StorageProvider::Gcs, SeaweedFs::BUCKET)
    };
    // An http:// endpoint needs no credentials.
    let store = SnapStore::open(&config, &Environment::default()).unwrap();
    conformance::run_all(&store).await;
}
