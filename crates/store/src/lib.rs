//! Object stores: providers, credentials, parallel transfer, retries.
