// The header stands alone in C++17, and its functions link unmangled.
#include "bn_engine.h"

static_assert(sizeof(bn_event) == 128, "bn_event is frozen");

int main() {
    bn_engine_config config{};
    const bn_request any = BN_ANY;
    return bn_engine_config_init(&config, sizeof config) == BN_OK && any != 0 ? 0 : 1;
}
