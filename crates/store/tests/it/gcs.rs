//! Provider `GCS`.
//!
//! The client speaks Google's XML API, the dialect of S3 that Google documents. Emulators on the
//! package registries speak only the JSON API, without listing, versions or multipart for this one, so
//! the server here is `SeaweedFS`, open to anonymous requests as an emulator is. A proxy translates the
//! one header that differs: "only if there is no generation yet" becomes "only if nothing matches".

use hyper::http::{HeaderValue, header, request};
use mainstay_store::{Environment, StorageProvider, SnapStore, StoreConfig};

use crate::conformance;
use crate::data::test_transfer_config;
use crate::proxy::Proxy;
use crate::servers::{Access, SeaweedFs};

fn translate_google_request(parts: &mut request::Parts) {
    // Emulators ignore the token; this server takes it for an attempt to sign in.
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
async fn the_xml_api_of_google_keeps_every_promise() {
    let weed = SeaweedFs::start(Access::Anonymous).await;
    let proxy = Proxy::start_translating(&weed.endpoint, translate_google_request).await;
    let config = StoreConfig {
        // The path of the JSON API is what operators have in their configuration.
        endpoint: Some(format!("{}/storage/v1/", proxy.endpoint).parse().unwrap()),
        transfer: test_transfer_config(),
        ..StoreConfig::new(StorageProvider::Gcs, SeaweedFs::BUCKET)
    };
    // An http:// endpoint needs no credentials.
    let store = SnapStore::open(&config, &Environment::default()).unwrap();
    conformance::run_all(&store).await;
}
