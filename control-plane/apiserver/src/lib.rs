//! HTTP, authenticate, authorize, decode, admit, validate, store, encode
