// The header stands alone in C11.
#include "bn_engine.h"

int main(void) {
    bn_engine_config config;
    return bn_engine_config_init(&config, sizeof config) == BN_OK ? 0 : 1;
}
