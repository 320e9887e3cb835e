//! TLS: trusted and untrusted certificates, and customer keys.

use mainstay_store::{
    Environment, ErrorClass, SnapStore, StorageProvider, StoreConfig, StoreOpenError, UploadOptions,
};
use rcgen::{CertificateParams, KeyPair};

use crate::data::{
    MIB, assert_same_bytes, assert_tried_once, download, put_object, random_bytes,
    test_transfer_config, upload,
};
use crate::s3::write_secret_directory;
use crate::servers::{Certificate, SeaweedFs};

fn generate_self_signed() -> Certificate {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    Certificate {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

fn open_store(
    weed: &SeaweedFs,
    name: &str,
    extra: &[(&str, &str)],
) -> Result<SnapStore, StoreOpenError> {
    let keys = [
        ("region", "us-east-1"),
        ("accessKeyID", SeaweedFs::KEY_ID),
        ("secretAccessKey", SeaweedFs::SECRET),
    ];
    let parent = weed.server.directory.path().join(name);
    let directory = write_secret_directory(&parent, &[&keys, extra].concat());
    let env = Environment::from_iter([("AWS_APPLICATION_CREDENTIALS", directory)]);
    let config = StoreConfig {
        endpoint: Some(weed.endpoint.parse().unwrap()),
        transfer: test_transfer_config(),
        ..StoreConfig::new(StorageProvider::S3, SeaweedFs::BUCKET)
    };
    SnapStore::open(&config, &env)
}

#[tokio::test(flavor = "multi_thread")]
async fn private_ca_is_trusted_if_configured_and_refused_without_retries() {
    let certificate = generate_self_signed();
    let weed = SeaweedFs::start_tls(&certificate).await;

    let untrusting = open_store(&weed, "untrusting", &[]).unwrap();
    let error = untrusting.list("v2").await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Invalid, "{error:?}");
    assert_tried_once(&error);

    let trusting = open_store(
        &weed,
        "trusting",
        &[("trustedCaCert", &certificate.certificate)],
    )
    .unwrap();
    put_object(&trusting, "v2/Full-1", &random_bytes(1, 10)).await;

    let unverified = open_store(&weed, "unverified", &[("insecureSkipVerify", "true")]).unwrap();
    assert_eq!(unverified.list("v2").await.unwrap().len(), 1);

    assert!(open_store(&weed, "garbled", &[("trustedCaCert", "not a certificate")]).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_under_a_customer_key_need_that_key() {
    let certificate = generate_self_signed();
    let weed = SeaweedFs::start_tls(&certificate).await;
    let key = "0123456789abcdef0123456789abcdef";
    let encrypted = [("sseCustomerKey", key), ("sseCustomerAlgorithm", "AES256")];
    let trusted = [("trustedCaCert", certificate.certificate.as_str())];
    let with_key = open_store(&weed, "with-key", &[&trusted[..], &encrypted].concat()).unwrap();
    let without = open_store(&weed, "without", &trusted).unwrap();

    for length in [1000, 12 * MIB + 5] {
        let (name, bytes) = (format!("v2/{length}"), random_bytes(2, length));
        upload(&with_key, &name, &bytes, UploadOptions::create_only())
            .await
            .unwrap();
        assert_same_bytes(&download(&with_key, &name).await.unwrap(), &bytes);
        let error = download(&without, &name).await.unwrap_err();
        assert_ne!(error.class(), ErrorClass::Transient, "{error:?}");
    }
}
