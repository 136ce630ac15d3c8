//! Registries that answer a pull with data made to harm the puller.
