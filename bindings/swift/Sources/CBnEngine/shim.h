#include <bn_engine.h>
